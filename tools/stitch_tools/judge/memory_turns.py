"""A check's part of its device's memory: claimed by forecast, and the check repeated alone where it ran out.

Other jobs and strangers use the same memory. That it runs out beside them says nothing about a program.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from stitch_tools.errors import StoreError
from stitch_tools.judge.memory_holders import in_use, memory_held
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.device_lock import DEVICE_WAIT_S
from stitch_tools.machine.device_memory import DeviceMemory, MemoryReading, Waiter
from stitch_tools.models.task import ReferenceFacts
from stitch_tools.models.verdict import Check
from stitch_tools.run.reference_server import ReferenceMemoryError

# Contexts of CUDA with the code of torch's libraries: reference server, worker, and the traced one.
_CONTEXTS_BYTES = 3 * (600 << 20)
# An oracle is run where it takes no more than this of what is free (worker/reference/oracle_memory.py).
_ORACLE_SHARE = 0.7


@dataclass(frozen=True)
class CheckAttempt:
    """One run of a check."""

    result: Check | ReferenceMemoryError
    memory_short: bool
    """Whether anything failed, or was judged otherwise, because memory was missing."""

    @property
    def ran_out(self) -> bool:
        """Whether nothing is known of the program because memory was missing."""
        return isinstance(self.result, ReferenceMemoryError) or self.result.status == "out_of_memory"

    def check(self) -> Check:
        """The result.

        Raises:
            ReferenceMemoryError: there was not enough memory for the reference.
        """
        if isinstance(self.result, ReferenceMemoryError):
            raise self.result
        return self.result


def forecast_bytes(facts: ReferenceFacts, *, on_gpu: bool) -> int:
    """What a check will take of its device: reference, oracle, and the program in two workers.

    What a forward takes for itself is not known before it runs; the repetition is for that.
    """
    weights = sum(row.nbytes for row in facts.parameters)
    values = sum(row.nbytes for row in (*facts.inputs, *facts.outputs))
    oracle = (2 * weights + 3 * values) / _ORACLE_SHARE
    return int(oracle) + 3 * weights + 6 * values + (_CONTEXTS_BYTES if on_gpu else 0)


def check_in_turn(
    trial: Trial, memory: DeviceMemory | None, attempt: Callable[[], CheckAttempt], *, limited: bool
) -> Check:
    """The check that `attempt` makes: among other jobs, and once more alone where memory ran out among them.

    Args:
        trial: the program.
        memory: of its device; None where that is not here.
        attempt: runs the check.
        limited: whether the caller bounds the memory, so that others are not why it ran out.

    Raises:
        ReferenceMemoryError: there is not enough memory for the reference.
        MemoryHeldError: other processes hold it.
        InterruptedRunError: the trial was stopped while it waited.
    """
    if memory is None:
        return attempt().check()
    turn = _Turn(trial, memory, forecast_bytes(trial.facts, on_gpu=trial.on_gpu))
    first, shared = turn.among_others(attempt)
    if limited or not (first.memory_short and shared):
        return first.check()
    trial.say("memory ran out beside other processes: the check is repeated alone")
    if trial.reference is not None:
        trial.reference.stop()  # it keeps memory, and the check starts it anew
    try:
        again, reading = turn.alone(attempt)
    except StoreError as error:
        return _left_open(first, f"{error.message}; {error.hint}")
    if again.ran_out and memory.shared_by_strangers(reading):
        return _left_open(again, in_use(reading))
    return again.check()


@dataclass(frozen=True)
class _Turn:
    trial: Trial
    memory: DeviceMemory
    forecast_bytes: int

    def among_others(self, attempt: Callable[[], CheckAttempt]) -> tuple[CheckAttempt, bool]:
        """The attempt, and whether memory was shared meanwhile. Without room it is made all the same."""
        with ExitStack() as held:
            try:
                claim = held.enter_context(self.memory.claim(self.forecast_bytes, self._waiter()))
            except StoreError:  # no room in time, or a lock folder that cannot be written
                claim = None
            result = attempt()
            return result, claim is None or claim.was_shared()

    def alone(self, attempt: Callable[[], CheckAttempt]) -> tuple[CheckAttempt, MemoryReading]:
        """The attempt with no other job beside it, and what was in use before."""
        with self.memory.claim(self.forecast_bytes, self._waiter(), alone=True) as claim:
            return attempt(), claim.at_start

    def _waiter(self) -> Waiter:
        trial = self.trial
        left_s = DEVICE_WAIT_S if trial.deadline_s is None else trial.deadline_s - time.monotonic()
        return Waiter(
            wait_s=max(0.0, min(DEVICE_WAIT_S, left_s)),
            purpose=f"check {trial.program.program_id[:12]}",
            emit=trial.emit,
            stop=trial.stop,
        )


def _left_open(attempt: CheckAttempt, why: str) -> Check:
    """The result where others are why memory ran out: never the program's fault."""
    if isinstance(attempt.result, ReferenceMemoryError):
        raise memory_held(attempt.result, why)
    if not attempt.ran_out:
        return attempt.result
    message = f"memory ran out, and {why}: wait for them or end them, then check again"
    return attempt.result.model_copy(
        update={
            "status": "unmeasured",
            "memory_held": True,
            "message": f"{message} ({attempt.result.message})",
        }
    )
