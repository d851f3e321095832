"""The worker that is watched, seen from the controller: started, loaded, and asked what the profiler saw."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.correctness.check_wording import describe_reason, describe_refusal
from stitch_tools.judge.correctness.draw_runner import expected
from stitch_tools.judge.trial import Trial
from stitch_tools.protocol.messages import Fd, Operation, OperationFailedError
from stitch_tools.protocol.messages_candidate import BeginTrace, EndTrace, RunTraced, StepReply, TraceReport
from stitch_tools.run.candidate_worker import Answer, Worker, read_answer, reset_state
from stitch_tools.run.reference_server import ReferenceServer

ReplyT = TypeVar("ReplyT")

_EXTRA_S = 60.0
_TIMES_REFERENCE = 50  # how much slower than the reference a program may be before it is stopped


class RefusedError(Exception):
    """The watched program did not do a step; the message says which and why. A result, not our trouble."""


class HarnessFaultError(Exception):
    """What watches the program failed: our trouble. It ends in `not_checked` and says nothing about it."""


class NoRoomToWatchError(HarnessFaultError):
    """There is not enough memory for the program beside the profiler."""


@dataclass(frozen=True)
class WatchedWorker:
    """A program in a worker of its own, which loads it under the profiler."""

    trial: Trial
    options: CheckOptions
    reference: ReferenceServer
    worker: Worker

    def start(self, *, load: bool = True) -> None:
        """Wait until the program is loaded, and give it fresh weights (`load` as in `Worker.init`).

        Raises:
            RefusedError: it cannot be loaded, or fails in its constructor.
            HarnessFaultError: there is not enough memory beside the profiler.
        """
        require_step(self.worker.load(self.options.init_timeout_s))
        # A `ModelNew` makes its own weights: a GPU need not hold them twice.
        weights = self.reference.set_weights(on_host=self.trial.program.format != "native")
        try:
            answer = self.worker.init(weights, self.options.init_timeout_s, load=load)
        finally:
            weights.close()
        require_step(answer)

    def report(self) -> TraceReport:
        """What the profiler saw; a claim."""
        return self._call(EndTrace(), self.options.init_timeout_s)

    def traced_draw(self, kind: str, calls: int) -> bool:
        """Whether the outputs were right after a block of `calls` calls (cuda) or of some time (cpu)."""
        inputs = self.reference.make_draw(kind)
        with expected(self.reference, inputs, self.trial.updated) as (expectation, outputs_fd):
            self.reference.prime(outputs_fd, expectation)
            request = RunTraced(
                inputs=inputs.manifest,
                structure=inputs.structure,
                layout=expectation.layout,
                output_structure=expectation.structure,
                calls=calls,
                generator=expectation.generator,
                inputs_fd=Fd(inputs.fds[0]),
                outputs_fd=Fd(outputs_fd),
            )
            # Recording slows small operators down, and a block is many calls.
            timeout_s = max(self.options.call_timeout_s, _TIMES_REFERENCE * expectation.reference_s)
            answer = self.step(request, timeout_s + _EXTRA_S)
            comparison = self.reference.compare(outputs_fd, expectation, answer.generator)
        return not any(row.problem for row in comparison.outputs)

    def step(self, operation: Operation[StepReply], timeout_s: float) -> Answer:
        """Have the worker do something of this side's. Raises as `require_step`."""
        answer = read_answer(self._call(operation, timeout_s))
        require_step(answer)
        return answer

    def _call(self, operation: Operation[ReplyT], timeout_s: float) -> ReplyT:
        try:
            return self.worker.call(operation, timeout_s)
        except OperationFailedError as error:
            # The program's own exceptions come as a status (worker/candidate); what nobody foresaw is ours.
            raise HarnessFaultError(str(error)[:300]) from error


def start_worker(trial: Trial, options: CheckOptions, kept: tuple[str, ...] = ()) -> Worker:
    """A fresh worker for the program, with nothing loaded; no call may change the buffers `kept`."""
    memory_bytes, cache_dir = options.memory_bytes, options.cache_dir
    given = (trial.session, trial.task, trial.program, trial.build, trial.store)
    reset = reset_state(trial.task.contract, trial.facts)
    return Worker(*given, memory_bytes=memory_bytes, kept=kept, reset=reset, cache_dir=cache_dir)


@contextmanager
def watched_worker(
    trial: Trial, options: CheckOptions, reference: ReferenceServer
) -> Generator[WatchedWorker]:
    """A fresh worker under the profiler, which loads the program.

    Raises:
        HarnessFaultError: the profiler cannot be started.
    """
    with start_worker(trial, options) as worker:
        watched = WatchedWorker(trial, options, reference, worker)
        # The profiler comes first: a program may capture a graph in its constructor, or while it is loaded.
        watched.step(_begin_trace(trial, worker), options.init_timeout_s)
        worker.begin_load()
        yield watched


def _begin_trace(trial: Trial, worker: Worker) -> BeginTrace:
    """The request for a trace, with what makes a loaded file in the worker the program's own."""
    artifact = trial.build.artifact if trial.build is not None and trial.program.format == "native" else None
    folder = None if worker.folder is None else str(worker.folder.resolve())
    places = (worker.child.scratch, *((artifact,) if artifact else ()), *((folder,) if folder else ()))
    return BeginTrace(tuple(str(Path(place).resolve()) for place in places), folder, trial.on_gpu)


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
    message = describe_refusal(replace(answer, message=reason))
    if answer.status == "out_of_memory":
        raise NoRoomToWatchError(f"not enough memory to watch the program: {message}"[:500])
    if not answer.ok:
        raise RefusedError(message)
