"""The worker that is watched, seen from the controller: started, loaded, and asked what the profiler saw."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.correctness.check_wording import describe_reason, describe_refusal
from stitch_tools.models import Build, Fact, Program, Task
from stitch_tools.models.evidence import WorkOwner
from stitch_tools.protocol.messages import Fd, Operation, OperationFailedError
from stitch_tools.protocol.messages_candidate import BeginTrace, EndTrace, RunTraced, StepReply
from stitch_tools.run.candidate_worker import Answer, Worker
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store

ReplyT = TypeVar("ReplyT")

_BLOCK_S = 0.1
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
    """Nanoseconds."""


class Report(Fact):
    """What a worker says at the end of a trace."""

    rows: tuple[ReportRow, ...]
    observations: int
    """Device activities (cuda), or forwards (cpu)."""
    past_dispatcher: tuple[str, ...] = ()
    """Operators whose code the program's binaries can call without a record of it."""
    outside_ns: int = 0
    """Time outside of PyTorch's operators (cpu)."""
    own_code: bool = True
    """Whether compiled code of the program's own is loaded (cpu)."""
    libraries: tuple[str, ...] = ()
    """Libraries that were loaded with the program, whose calls the profiler does not see (cpu)."""
    blocks: tuple[dict[str, float], ...] = ()
    """Launches per forward of each block (cuda)."""
    never: tuple[str, ...] = ()
    lost: int = 0
    """Launches in the blocks that the profiler has no record of (cuda)."""


class RefusedError(Exception):
    """The watched program did not do a step; the message says which and why. A result, not our trouble."""


class HarnessFaultError(Exception):
    """What watches the program failed: our trouble. It ends in `not_checked` and says nothing about it."""


class WatchedWorker:
    """A loaded program in a worker of its own, under the profiler."""

    def __init__(self, case: Case, reference: ReferenceServer, worker: Worker) -> None:
        self._case, self._reference, self._worker = case, reference, worker

    def begin_load(self) -> None:
        """Start the profiler and ask for `load` without waiting for it; only `load` may follow.

        Raises:
            HarnessFaultError: the profiler cannot be started.
        """
        # The profiler comes first: a program may capture a graph in its constructor, or while it is loaded.
        _accept(self._call(_begin_trace(self._case, self._worker), self._case.options.init_timeout_s))
        self._worker.begin_load()

    def load(self) -> None:
        """Wait until the program is loaded.

        Raises:
            RefusedError: it cannot be loaded.
            HarnessFaultError: there is not enough memory beside the profiler.
        """
        require_step(self._worker.load(self._case.options.init_timeout_s))

    def init(self) -> None:
        """Give the program fresh weights.

        Raises:
            RefusedError: it fails.
            HarnessFaultError: there is not enough memory beside the profiler.
        """
        # A `ModelNew` makes its own weights: a GPU need not hold them twice.
        weights = self._reference.set_weights(on_host=self._case.program.format != "native")
        try:
            answer = self._worker.init(weights, self._case.options.init_timeout_s)
        finally:
            weights.close()
        require_step(answer)

    def report(self) -> Report:
        """What the profiler saw.

        Raises:
            HarnessFaultError: the answer makes no sense.
        """
        return parse_report(self._call(EndTrace(), self._case.options.init_timeout_s))

    def traced_draw(self, kind: str, calls: int) -> bool:
        """Whether the outputs were right after a block of `calls` calls (cuda) or of some time (cpu)."""
        inputs = self._reference.make_draw(kind)
        try:
            expectation = self._reference.expect(self._case.updated)
            outputs_fd = self._reference.make_outputs(expectation.nbytes)
            try:
                self._reference.prime(outputs_fd, expectation)
                request = RunTraced(
                    inputs=inputs.manifest,
                    structure=inputs.structure,
                    layout=expectation.layout,
                    output_structure=expectation.structure,
                    calls=calls,
                    seconds=_BLOCK_S,
                    generator=expectation.generator,
                    inputs_fd=Fd(inputs.fds[0]),
                    outputs_fd=Fd(outputs_fd),
                )
                # Recording slows small operators down, and a block is many calls.
                timeout_s = max(self._case.options.call_timeout_s, _TIMES_REFERENCE * expectation.reference_s)
                reply = _accept(self._call(request, timeout_s + _EXTRA_S))
                comparison = self._reference.compare(outputs_fd, expectation, reply.generator)
            finally:
                os.close(outputs_fd)
        finally:
            inputs.close()
        return not any(row.problem for row in comparison.outputs)

    def _call(self, operation: Operation[ReplyT], timeout_s: float) -> ReplyT:
        try:
            return self._worker.child.call(operation, timeout_s)
        except OperationFailedError as error:
            # The program's own exceptions come as a status (worker/candidate); what nobody foresaw is ours.
            raise HarnessFaultError(str(error)[:300]) from error


@contextmanager
def watched_worker(case: Case, reference: ReferenceServer) -> Generator[WatchedWorker]:
    """A fresh worker, with nothing loaded yet."""
    with Worker(
        case.session,
        case.task,
        case.program,
        case.build,
        case.store,
        memory_bytes=case.options.memory_bytes,
        cache_dir=case.options.cache_dir,
    ) as worker:
        yield WatchedWorker(case, reference, worker)


def _begin_trace(case: Case, worker: Worker) -> BeginTrace:
    """The request for a trace, with what makes a loaded file in the worker the program's own."""
    artifact = case.build.artifact if case.build is not None and case.program.format == "native" else None
    files = () if artifact is None else (str(Path(artifact).resolve()),)
    folder = None if worker.folder is None else str(worker.folder.resolve())
    folders = (str(Path(worker.child.scratch).resolve()), *([folder] if folder else []))
    return BeginTrace(files, folders, folder, case.cuda)


def parse_report(fields: dict[str, object]) -> Report:
    """What a worker says of its trace.

    Raises:
        HarnessFaultError: it makes no sense. Our own code wrote it; one that was forged says nothing either.
    """
    try:
        return Report.model_validate(fields)
    except ValidationError as error:
        raise HarnessFaultError(f"the watched worker's answer makes no sense: {error}"[:500]) from error


def _accept(reply: StepReply) -> StepReply:
    check_status(reply.status, f"{reply.step}: {reply.message or reply.status}"[:500])
    return reply


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
    check_status(answer.status, describe_refusal(replace(answer, message=reason)))


def check_status(status: str, reason: str) -> None:
    """Go on where the status is `ok`. Raises as `require_step`."""
    if status == "out_of_memory":
        raise HarnessFaultError(f"not enough memory to watch the program: {reason}"[:500])
    if status != "ok":
        raise RefusedError(reason)
