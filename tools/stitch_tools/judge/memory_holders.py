"""Who holds a device's memory where it ran out: beside others that tells nothing about the program."""

from collections.abc import Generator
from contextlib import contextmanager

from stitch_tools.errors import MemoryHeldError
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.device_memory import DeviceMemory, MemoryReading, device_memory
from stitch_tools.models.verdict import Bench
from stitch_tools.protocol.memory_faults import says_out_of_memory
from stitch_tools.run.reference_server import ReferenceMemoryError, ReferenceServer


@contextmanager
def naming_holders(target: str, memory: DeviceMemory | None = None) -> Generator[None]:
    """Tell a reference that needs too much memory from one that finds others on its device.

    The caller's own processes have to end inside the block: else they are taken for others.

    Args:
        target: the reference's.
        memory: by default that of the target's GPU; without one nobody is named.

    Raises:
        MemoryHeldError: in place of a ReferenceMemoryError, where others hold memory.
    """
    try:
        yield
    except ReferenceMemoryError as error:
        memory = memory or _gpu_memory(target)
        held = _held_words(memory) if memory is not None else ""
        if not held:
            raise
        raise memory_held(error, held) from error


def refuse_held_memory(reference: ReferenceServer, why_less: str, memory: DeviceMemory | None = None) -> None:
    """Nothing, unless a result is less than it would be since others hold memory of the device.

    Args:
        reference: what made the result; it is stopped, and started anew, else its memory counts as others'.
        why_less: the reason that the result gives for being less; any other than missing memory is none here.
        memory: by default that of the reference's GPU; without one nobody is named.

    Raises:
        MemoryHeldError: others hold memory.
    """
    if not says_out_of_memory(why_less):
        return
    memory = memory or _gpu_memory(reference.task.target)
    reference.stop()
    held = _held_words(memory) if memory is not None else ""
    if held:
        raise memory_held(ReferenceMemoryError(why_less), held)
    reference.revive()


def _gpu_memory(target: str) -> DeviceMemory | None:
    """The memory of a GPU; None for a CPU, on which what bounds a reference is a limit of its own."""
    return device_memory(target) if target != "cpu" else None


def memory_held(error: ReferenceMemoryError, why: str) -> MemoryHeldError:
    """The error that says why there was no memory for the reference."""
    hint = "Wait for them or end them, then run the same command again."
    return MemoryHeldError(f"{error.message} ({why})", hint=hint)


def in_use(reading: MemoryReading) -> str:
    """The words on memory that is in use without a claim."""
    held = f"{reading.used_bytes >> 20} of {reading.total_bytes >> 20} MiB"
    return f"other processes hold {held} of the device's memory"


class BenchMemory:
    """What a timing shares its device's memory with. It claims nothing, and is never repeated."""

    def __init__(self, trial: Trial, memory: DeviceMemory | None) -> None:
        """To be made before the timing; `memory` is None where the device is not here."""
        self._trial = trial
        self._memory = memory
        self._entries = memory.entries() if memory is not None else 0

    def excuse(self, bench: Bench) -> Bench:
        """The Bench, left open where memory ran out beside others.

        All processes of the timing have ended; the trial's reference is stopped, else it counts as others.
        """
        trial, memory = self._trial, self._memory
        if memory is None or not _lacked_memory(bench):
            return bench
        if trial.reference is not None:
            if trial.reference.limited and not trial.on_gpu:
                return bench  # the caller bounds the memory: others are not why it ran out
            trial.reference.stop()
        held = _held_words(memory)
        if not held and memory.entries() != self._entries:
            held = "other jobs used the device meanwhile"
        if not held:
            return bench
        message = f"memory ran out, and {held}: wait for them or end them, then time it again"
        return bench.model_copy(
            update={
                "outcome": "unmeasured",
                "ratios": (),
                "program_failed": False,
                "memory_held": True,
                "message": f"{message} ({bench.message})",
            }
        )


def _lacked_memory(bench: Bench) -> bool:
    """Whether there was no memory for the program, or for eager, which all ratios are to."""
    eager = bench.timing("eager")
    missed = eager.note if eager is not None and eager.latency_us is None else ""
    return says_out_of_memory(missed) or (bench.program_failed and says_out_of_memory(bench.message))


def _held_words(memory: DeviceMemory) -> str:
    """Who holds memory of the device now, in words; "" where nobody holds enough to matter."""
    reading, claimed = memory.read(), memory.claimed_bytes()
    if memory.shared_by_strangers(reading):
        return in_use(reading)
    return f"{claimed >> 20} MiB are claimed by other jobs" if claimed else ""
