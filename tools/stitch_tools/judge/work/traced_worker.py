"""The worker that is watched, seen from the controller: started, loaded, and asked what it saw."""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from stitch_tools.compile.host_build import build_sampler
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.correctness.check_wording import describe_reason, describe_refusal
from stitch_tools.models import Build, Fact, Program, Task
from stitch_tools.models.evidence import WorkOwner
from stitch_tools.protocol.wire import Frame
from stitch_tools.run.candidate_worker import Answer, Worker
from stitch_tools.run.reference_server import Expectation, Inputs, ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store

_BLOCK_S = 0.3
DIRECTLY = " (past the dispatcher)"
"""End of the name of an operator of PyTorch that was called directly (worker/candidate/activity)."""
_EXTRA_S = 60.0
_TIMES_REFERENCE = 50  # how much slower than the reference a program may be before it is stopped


@dataclass(frozen=True)
class Case:
    """The program to be watched, and all that its worker needs."""

    session: TargetSession
    task: Task
    program: Program
    build: Build | None
    store: Store
    options: CheckOptions
    updated: Sequence[str]
    """Buffers that pass in and out."""

    @property
    def cuda(self) -> bool:
        """Whether it runs on a GPU."""
        return self.task.target.startswith("cuda")


class ReportRow(Fact):
    """One thing that took time; a claim."""

    owner: WorkOwner
    name: str
    calls: float | None
    weight: int
    """Samples, or nanoseconds."""


class Report(Fact):
    """What a worker says at the end of a trace."""

    rows: tuple[ReportRow, ...]
    samples: int
    blocks: tuple[dict[str, float], ...]
    """Launches per forward of each block (cuda)."""
    never: tuple[str, ...] = ()
    lost: int = 0
    """Launches in the blocks that the tracer has no record of."""


class Gated(Fact):
    """What the gates before launches of own binaries say."""

    passed: int
    """How often any was passed so far."""
    trouble: str = ""
    """Why some launches are not seen; then nothing follows from the counts."""


class LaunchCounts(Fact):
    """What a worker without a tracer shows (cuda)."""

    launches: dict[str, float]
    """Launches per forward of the program's own binaries, by launch function."""
    host: tuple[ReportRow, ...] = ()
    """Samples of the host's threads."""
    trouble: str = ""
    """Why some launches are not seen; then nothing follows from the counts."""

    @property
    def past_dispatcher(self) -> float:
        """Share of the host's work in functions of PyTorch that were called past its dispatcher, 0 to 1."""
        work = sum(row.weight for row in self.host if row.owner != "other")
        past = sum(row.weight for row in self.host if row.name.endswith(DIRECTLY))
        return past / work if work > 0 else 0.0


class RefusedError(Exception):
    """The watched program did not do a step; the message says which and why. A result, not our trouble."""


class HarnessFaultError(Exception):
    """What watches the program failed: our trouble. It ends in `not_checked` and says nothing about it."""


class WatchedWorker:
    """A loaded program in a worker of its own, under a tracer or with its launches stopped."""

    def __init__(self, case: Case, reference: ReferenceServer, worker: Worker, where: dict[str, Any]) -> None:
        self._case, self._reference, self._worker, self._where = case, reference, worker, where

    def begin_load(self) -> None:
        """Start the tracer and ask for `load` without waiting for it; only `load` may follow.

        Raises:
            HarnessFaultError: the tracer cannot be started.
        """
        self.begin()
        self._worker.begin_load()

    def load(self) -> None:
        """Load the program, or wait for that where it has begun.

        Raises:
            RefusedError: it cannot be loaded.
            HarnessFaultError: there is not enough memory beside the tracer.
        """
        require_step(self._worker.load(self._case.options.init_timeout_s))

    def init(self) -> None:
        """Give the program fresh weights.

        Raises:
            RefusedError: it fails.
            HarnessFaultError: there is not enough memory beside the tracer.
        """
        weights = self._reference.set_weights(on_host=self._case.program.format != "native")
        try:
            answer = self._worker.init(weights, self._case.options.init_timeout_s)
        finally:
            weights.close()
        require_step(answer)

    def begin(self) -> None:
        """Start the tracer; before the program is loaded."""
        self._ask("activity_begin", cuda=self._case.cuda)

    def gate(self, *, shut: bool) -> Gated:
        """Put gates before launches of own binaries, as far as loaded.

        Raises:
            HarnessFaultError: that fails, or the answer makes no sense.
        """
        return parse_answer(Gated, self._ask("activity_gates", shut=shut))

    def launches(self) -> "LaunchCounts":
        """Launches per forward that the gates counted.

        Raises:
            HarnessFaultError: the answer makes no sense.
        """
        return count_launches(self._worker, self._case, None)

    def report(self) -> Report:
        """What the tracer saw.

        Raises:
            HarnessFaultError: the answer makes no sense.
        """
        return parse_answer(Report, self._ask("activity_end"))

    def traced_draw(self, kind: str, calls: int) -> bool:
        """Whether the outputs were right after a block of traced calls."""

        def run(inputs: Inputs, outputs_fd: int, expectation: Expectation, timeout_s: float) -> bytes:
            message = {
                "op": "activity_run",
                "inputs": inputs.manifest,
                "structure": inputs.structure,
                "layout": expectation.layout,
                "output_structure": expectation.structure,
                "calls": calls,
                "seconds": _BLOCK_S,
                "pytorch_share": self._case.task.contract.pytorch_share,
            }
            fds = (inputs.fds[0], outputs_fd)
            return accepted(
                self._worker.child.request(message, expectation.generator, fds, timeout_s + _EXTRA_S)
            ).blob

        return self._draw(kind, run)

    def plain_draw(self, kind: str) -> bool:
        """Whether the outputs of one forward were right."""

        def run(inputs: Inputs, outputs_fd: int, expectation: Expectation, timeout_s: float) -> bytes:
            answer = self._worker.run(inputs, outputs_fd, expectation, reuse=False, timeout_s=timeout_s)
            require_step(answer)
            return answer.blob

        return self._draw(kind, run)

    def _draw(self, kind: str, run: Callable[[Inputs, int, Expectation, float], bytes]) -> bool:
        inputs = self._reference.make_draw(kind)
        try:
            expectation = self._reference.expect(self._case.updated)
            outputs_fd = self._reference.make_outputs(expectation.nbytes)
            try:
                self._reference.prime(outputs_fd, expectation)
                timeout_s = max(self._case.options.call_timeout_s, _TIMES_REFERENCE * expectation.reference_s)
                blob = run(inputs, outputs_fd, expectation, timeout_s)
                comparison = self._reference.compare(outputs_fd, expectation, blob)
            finally:
                os.close(outputs_fd)
        finally:
            inputs.close()
        return not any(row.problem for row in comparison.outputs)

    def _ask(self, op: str, **fields: object) -> dict[str, Any]:
        message = {"op": op, **self._where, **fields}
        frame = self._worker.child.request(message, timeout_s=self._case.options.init_timeout_s)
        return accepted(frame).message


@contextmanager
def watched_worker(case: Case, reference: ReferenceServer) -> Generator[WatchedWorker]:
    """A fresh worker, with nothing loaded yet.

    Raises:
        EnvironmentMissingError: the sampler (cpu) cannot be built here.
    """
    sampler = None if case.cuda else build_sampler()
    readable = () if sampler is None else (sampler,)
    with Worker(
        case.session,
        case.task,
        case.program,
        case.build,
        case.store,
        readable=readable,
        memory_bytes=case.options.memory_bytes,
        cache_dir=case.options.cache_dir,
    ) as worker:
        where = {
            **belongings(case, worker),
            "harness": [str(path.resolve()) for path in readable],
            "sampler": None if sampler is None else str(sampler),
        }
        yield WatchedWorker(case, reference, worker, where)


def belongings(case: Case, worker: Worker) -> dict[str, Any]:
    """What makes an object in a worker the program's own."""
    artifact = case.build.artifact if case.build is not None and case.program.format == "native" else None
    files = [] if artifact is None else [str(Path(artifact).resolve())]
    folder = None if worker.folder is None else str(worker.folder.resolve())
    folders = [str(Path(worker.child.scratch).resolve()), *([folder] if folder else [])]
    return {"files": files, "folders": folders, "source_folder": folder, "harness": []}


def count_launches(worker: Worker, case: Case, sampler: Path | None) -> LaunchCounts:
    """What a worker shows on its last inputs, with a `sampler` of its host's threads too; gates come first.

    Raises:
        HarnessFaultError: the answer makes no sense, or something of ours failed.
        RefusedError: the program fails.
    """
    message = {
        "op": "activity_launches",
        **belongings(case, worker),
        "sampler": None if sampler is None else str(sampler),
        "seconds": _BLOCK_S,
    }
    found = accepted(worker.child.request(message, timeout_s=case.options.init_timeout_s)).message
    return parse_answer(LaunchCounts, found)


def put_gates(worker: Worker, case: Case) -> None:
    """Count the launches of the program's own binaries in a worker that no tracer watches.

    Raises:
        HarnessFaultError: that fails.
    """
    message = {"op": "activity_gates", "shut": False, **belongings(case, worker)}
    _ = accepted(worker.child.request(message, timeout_s=case.options.init_timeout_s))


def sampler_for_host(task: Task, options: CheckOptions) -> Path | None:
    """The sampler that the worker of a GPU program's correctness check must be able to read, or None."""
    if not (options.trace and task.target.startswith("cuda")):
        return None
    try:
        return build_sampler()
    except EnvironmentMissingError:  # no host compiler: that part of the evidence is missing then
        return None


_Said = TypeVar("_Said", bound=Fact)


def parse_answer(kind: type[_Said], message: dict[str, Any]) -> _Said:
    """What a message says.

    Raises:
        HarnessFaultError: it makes no sense. Our own code wrote it; one that was forged says nothing either.
    """
    try:
        return kind.model_validate({name: message[name] for name in kind.model_fields if name in message})
    except ValidationError as error:
        raise HarnessFaultError(f"the watched worker's answer makes no sense: {error}"[:500]) from error


def accepted(frame: Frame) -> Frame:
    """The answer, its descriptors closed.

    Raises:
        HarnessFaultError: something of ours failed, or there is not enough memory to watch.
        RefusedError: the program did not do the step.
    """
    for fd in frame.fds:
        os.close(fd)
    message = frame.message
    if message.get("ok") is not True:
        # The program's own exceptions come as a status (worker/candidate); what nobody foresaw is ours.
        raise HarnessFaultError(_describe_fault(message.get("error")))
    status = f"{message.get('status')}"
    _check_status(status, f"{message.get('step')}: {message.get('message') or status}"[:500])
    return frame


def _describe_fault(error: object) -> str:
    """One line on an exception of the worker's own code."""
    fields = cast(dict[str, object], error) if isinstance(error, dict) else {"message": error}
    return f"{fields.get('kind', 'error')}: {fields.get('message')}"[:300]


def require_step(answer: Answer) -> None:
    """Go on where the step was done.

    Raises:
        HarnessFaultError: something of ours failed, or there is not enough memory to watch.
        RefusedError: the program did not do it.
    """
    if answer.step == "worker":
        raise HarnessFaultError(answer.message[:500])
    # It is quoted as the reason why something was not looked at: one line is enough.
    reason = describe_reason(answer) if answer.message.strip() else ""
    _check_status(answer.status, describe_refusal(replace(answer, message=reason)))


def _check_status(status: str, reason: str) -> None:
    if status == "out_of_memory":
        raise HarnessFaultError(f"not enough memory to watch the program: {reason}"[:500])
    if status != "ok":
        raise RefusedError(reason)
