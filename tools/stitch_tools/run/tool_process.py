"""Runs one command of a sanitizer in a fresh, confined process, and says how it ended."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import stitch_tools
from stitch_tools.protocol.messages import Fd, OperationFailedError
from stitch_tools.protocol.messages_session import ChildLimits, CommandEnded, ExecuteCommand
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.session import TargetSession

_SERVE_FILE = Path(stitch_tools.__file__).parent / "confine" / "tool_run.py"
_ANSWER_S = 20.0
REPORTS = "report"
"""Beginning of the names of the files that a tool writes what it found to."""


class Execution(CommandEnded):
    """How one command ended. All texts come from the program's process: data, and claims."""

    trouble: str = ""
    """How the confined process itself ended, where it did not survive; "" otherwise."""

    @property
    def done(self) -> bool:
        """Whether the host says that everything was run."""
        return "done" in self.stdout.splitlines()

    @property
    def refusal(self) -> str | None:
        """The step and message that the host ended with, None where it did not end that way."""
        for line in self.stdout.splitlines():
            if line.startswith("failed "):
                return line.removeprefix("failed ")[:500]
        return None

    @property
    def text(self) -> str:
        """Everything that a tool may have written to: its files, then standard error."""
        return "\n".join((*self.reports.values(), self.stderr))

    def why_not_done(self, limit_s: float) -> str:
        """One sentence: what kept the program from running through."""
        if self.timed_out:
            return f"did not finish within {limit_s:g} s"
        if self.trouble:
            return f"the process under the tool ended early: {self.trouble}"
        if self.refusal is not None:
            return f"the program did not run through: {self.refusal}"
        return f"the process under the tool ended with code {self.exit_code}: {self.last_words}"

    @property
    def last_words(self) -> str:
        """The last line that was printed."""
        lines = [line.strip() for text in (self.stdout, self.stderr) for line in text.splitlines()]
        return next((line[:300] for line in reversed(lines) if line), "no message")


def execute(
    session: TargetSession,
    command: Sequence[str],
    *,
    files: Mapping[str, str],
    env: Mapping[str, str],
    fds: tuple[int, ...],
    readable: Sequence[Path],
    limit_s: float,
    writable: Sequence[Path] = (),
    loopback: bool = False,
) -> Execution:
    """How `command` ended, run in a confined process of its own.

    Args:
        session: the target interpreter, whose isolation is used.
        command: program and arguments; "{0}", "{1}", ... stand for the descriptors' numbers.
        files: written into its folder before.
        env: environment variables beside those of a worker.
        fds: descriptors that it inherits.
        readable: files and folders that it may read.
        limit_s: it is killed after this many seconds.
        writable: folders that it may write beside its scratch folder.
        loopback: whether it may use a loopback network of its own.

    Raises:
        SandboxError: the isolation could not be applied, or is too weak for `loopback`.
        WorkerError: the zygote is gone.
    """
    request = ExecuteCommand(
        command=tuple(command),
        files=dict(files),
        env=dict(env),
        limit_s=limit_s,
        reports=REPORTS,
        fds=tuple(map(Fd, fds)),
    )
    child = session.spawn(
        "worker",
        readable=readable,
        writable=writable,
        limits=ChildLimits(shadow_memory=True),
        serve_file=_SERVE_FILE,
        loopback=loopback,
    )
    with child:
        try:
            ended = child.call(request, limit_s + _ANSWER_S)
        except ChildDied as death:
            return Execution(None, trouble=death.outcome.describe())
        except OperationFailedError as error:
            return Execution(None, trouble=str(error)[:500])
    return Execution(**vars(ended))
