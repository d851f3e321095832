"""Our own failures. What a candidate does wrong is a result, never one of these.

Every error says what happened (`message`) and what to do next: `hint` in words, `remedies` as calls. Only the
CLI maps them to exit codes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stitch_tools.models.remedy import Remedy


class StitchError(Exception):
    """A failure of ours or of the environment, with a stable `code` and a `hint` that names the next step."""

    code = "internal"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        options: tuple[str, ...] = (),
        remedies: "tuple[Remedy, ...]" = (),
    ) -> None:
        """Make an error that says what to do next.

        Args:
            message: what happened.
            hint: what to do next, each of `options` in it as `{name}`: CLI and MCP server spell them each in
                its own way.
            options: names of our options, as a tool's arguments are called.
            remedies: calls that help, best first.
        """
        super().__init__(message)
        self.message = message
        self.options = options
        self.remedies = remedies
        self._hint = hint

    @property
    def hint(self) -> str:
        """The hint as the command line says it."""
        return self.hint_for(flag)

    def hint_for(self, spell: Callable[[str], str]) -> str:
        """The hint with each option's name as `spell` gives it."""
        hint = self._hint
        for name in self.options:
            hint = hint.replace(f"{{{name}}}", spell(name))
        return hint


def flag(option: str) -> str:
    """An option as the command line spells it."""
    return f"--{option.replace('_', '-')}"


class UsageError(StitchError):
    """The caller asked for something that cannot be: a bad argument, an unknown id, a conflicting option."""

    code = "usage"


class TaskError(UsageError):
    """The reference cannot be used: syntax error, missing entry, wrong inputs, exception in forward."""

    code = "task"


class EnvironmentMissingError(StitchError):
    """Something this machine needs is not there: a compiler, torch in the target interpreter, a library."""

    code = "environment"


class MemoryHeldError(EnvironmentMissingError):
    """Other processes hold the memory of the device that a reference needs."""

    code = "memory_held"


class SandboxError(EnvironmentMissingError):
    """The isolation that was required is not available here."""

    code = "sandbox"


class StoreError(StitchError):
    """The run folder or store cannot be read or written: locked, full, read-only, damaged, newer schema."""

    code = "store"


class LockedError(StoreError):
    """Another process holds the lock; the message names its pid and host."""

    code = "locked"


class WorkerError(StitchError):
    """A process of ours (zygote, reference server) failed in a way that is not the candidate's doing."""

    code = "worker"


class CertificateError(StitchError):
    """The archive is damaged or is not a certificate."""

    code = "certificate"


class InterruptedRunError(StitchError):
    """The user stopped the run; everything finished so far is kept, and the remedy resumes it."""

    code = "interrupted"


class RunInterrupt(KeyboardInterrupt):
    """A KeyboardInterrupt that ended a run at once, and knows how to resume it. Not a failure of ours."""

    def __init__(self, *args: object, remedies: "tuple[Remedy, ...]") -> None:
        super().__init__(*args)
        self.remedies = remedies


class BudgetError(StitchError):
    """The time or money that the caller allowed is spent; everything finished so far is kept."""

    code = "budget"
