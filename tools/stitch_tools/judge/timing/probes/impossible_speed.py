"""Is the program faster than this device's measured ceilings allow?

The outputs of a batch lie in a ring of more memory than the caches hold, so most of their bytes must reach
memory while it runs. Of what a batch of n calls writes, at most one filling of all caches can be held back
in each pass over the ring: the rest, over the fastest rate that memory was ever seen to take, is a time that
no program comes below. What a program has to read or to compute is not known (an embedding reads few rows, a
product may need fewer operations than the text book's), so nothing follows from those.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from stitch_tools.judge.timing.probes.probe import ProbeContext, ProbeReport, Stage
from stitch_tools.machine.devices import Target, cpu_info
from stitch_tools.models.conditions import TimingDoubt
from stitch_tools.models.graph import Ceilings
from stitch_tools.run.ceilings import cached_ceilings, remeasured

NO_CEILINGS = "whether the times are possible: no ceilings of this device are kept (`stitch-mcp ceilings`)"
MARGIN = 1.1
"""Ceilings are taken this much higher than they were measured."""
# Medians of fewer batches may be those of a quiet moment.
_FEWEST_BATCHES = 10
_NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True)
class ImpossibleSpeed:
    """Compares a native program's times with the shortest possible ones; beaten ceilings are measured anew.

    One in Python may return views of its inputs, and needs to write nothing.
    """

    stage: Stage = "finished"

    def look(self, context: ProbeContext) -> ProbeReport:
        """A doubt where outputs cannot all have been written."""
        if not context.loaded.native:
            return ProbeReport()
        session, cache_dir = context.setup.session, context.setup.cache_dir
        known = cached_ceilings(context.setup.task.target, threads=session.threads, cache_dir=cache_dir)
        if known is None:
            return ProbeReport(not_checked=(NO_CEILINGS,))
        doubt = _doubt(known, context)
        if doubt is not None:
            # A neighbour may have taken bandwidth while they were measured.
            context.say("the program is faster than this device's ceilings: measuring those again")
            with context.setup.alone():
                known = remeasured(known, session, cache_dir=cache_dir)
            doubt = _doubt(known, context)
        return ProbeReport((doubt,) if doubt is not None else ())


def _doubt(ceilings: Ceilings, context: ProbeContext) -> TimingDoubt | None:
    return impossible_speed(
        ceilings,
        context.program.history,
        output_bytes=sum(spec.nbytes for spec in context.setup.facts.outputs),
        slots=context.setup.shape.slots,
        # Not every machine tells all of its caches.
        caches=max(_cache_bytes(context.target), ceilings.last_level_cache_bytes),
        nodes=memory_nodes() if context.target.gpu is None else 1,
    )


def impossible_speed(
    ceilings: Ceilings,
    history: Sequence[tuple[int, float]],
    *,
    output_bytes: int,
    slots: int,
    caches: int,
    nodes: int = 1,
) -> TimingDoubt | None:
    """The doubt about the batches that are furthest below their bound; None where none is.

    Args:
        ceilings: rates of the device.
        history: calls and seconds of every batch.
        output_bytes: of one call.
        slots: length of the ring.
        caches: bytes of all caches.
        nodes: memory nodes of the machine.
    """
    if ceilings.write_bytes_per_s is None:
        return None
    rate = MARGIN * nodes * max(ceilings.write_bytes_per_s, ceilings.copy_bytes_per_s)
    launch_s = ceilings.launch_us * 1e-6 if ceilings.target != "cpu" else 0.0
    doubts: list[TimingDoubt] = []
    for calls, seconds in batch_times(history).items():
        amount = unavoidable_bytes(output_bytes, calls, slots, caches)
        bound_s = launch_s + amount / rate
        if amount and seconds < bound_s:
            observed, expected = seconds * 1e6, bound_s * 1e6
            doubts.append(
                TimingDoubt(rule="faster_than_memory", observed=observed, expected=expected, calls=calls)
            )
    return max(doubts, key=lambda row: row.expected / max(row.observed, 1e-3), default=None)


def unavoidable_bytes(per_call: int, calls: int, slots: int, cache_bytes: int) -> int:
    """Bytes of `calls` calls over a ring of `slots` that must cross to memory, whatever caches keep."""
    passes, rest = divmod(calls, slots)
    return passes * max(0, slots * per_call - cache_bytes) + max(0, rest * per_call - cache_bytes)


def batch_times(history: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Median seconds of batches by their calls, less the quickest empty one; only where there are ten."""
    by_calls: dict[int, list[float]] = {}
    for calls, seconds in history:
        by_calls.setdefault(calls, []).append(seconds)
    overhead = min(by_calls.pop(0, [0.0]))
    return {
        calls: median(seconds) - overhead
        for calls, seconds in by_calls.items()
        if len(seconds) >= _FEWEST_BATCHES
    }


def _cache_bytes(target: Target) -> int:
    """What all caches of the device hold together: a line may be in any of them, and in one alone."""
    if target.gpu is not None:
        return target.gpu.l2_bytes or 0
    cpu = cpu_info()
    return (cpu.l3_bytes or 0) + cpu.cores * ((cpu.l2_bytes or 0) + (cpu.l1d_bytes or 0))


def memory_nodes(folder: Path = _NODES) -> int:
    """How many memory nodes this machine has, at least 1.

    With several, the bandwidth that threads see depends on where they and their pages lie.
    """
    return max(1, len(list(folder.glob("node[0-9]*"))))
