"""The shortest time of a batch of calls that measured ceilings allow.

The outputs of a batch lie in a ring of more memory than the caches hold, so most of their bytes must reach
memory while it runs. Of what a batch of n calls touches, at most one filling of all caches can be held back
in each pass over the ring: the rest, over the fastest rate that memory was ever seen to take, is a time that
no program comes below. What a program writes is known; what it has to read or to compute is not (an embedding
reads few rows, a product may need fewer operations than the text book's), so nothing follows from those.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from stitch_tools.machine.devices import Target, cpu_info
from stitch_tools.models import Ceilings, Finding, TimeBound

MARGIN = 1.1
"""Ceilings are taken this much higher than they were measured."""
# Medians of fewer batches may be those of a quiet moment.
_FEWEST_BATCHES = 10
_NODES = Path("/sys/devices/system/node")


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


def cache_bytes(target: Target) -> int:
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


def writing_bound(
    ceilings: Ceilings,
    history: Sequence[tuple[int, float]],
    *,
    output_bytes: int,
    slots: int,
    caches: int,
    nodes: int = 1,
) -> TimeBound | None:
    """The tightest bound of the batches; None where caches could hold everything back, or no rate is known.

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
    rate = MARGIN * nodes * max(ceilings.write_bytes_per_s, ceilings.copy_bytes_per_s or 0.0)
    launch_us = ceilings.launch_us if ceilings.target != "cpu" else 0.0
    # Not every machine tells all of its caches.
    caches = max(caches, ceilings.last_level_cache_bytes)
    bounds: list[TimeBound] = []
    for calls, seconds in batch_times(history).items():
        amount = unavoidable_bytes(output_bytes, calls, slots, caches)
        if amount:
            bound_us = launch_us + amount / rate * 1e6
            bounds.append(
                TimeBound(
                    kind="outputs",
                    calls=calls,
                    amount=float(amount),
                    per_s=rate,
                    bound_us=bound_us,
                    measured_us=seconds * 1e6,
                )
            )
    return max(bounds, key=lambda row: row.bound_us / max(row.measured_us, 1e-3), default=None)


def finding_of(bound: TimeBound) -> Finding:
    """What is said of a program that is faster than its bound."""
    calls = f"{bound.calls} calls" if bound.calls > 1 else "one call"
    return Finding(
        rule="faster_than_memory",
        severity="suspicious",
        message=f"{calls} took {bound.measured_us:.1f} us, writing their outputs takes"
        f" {bound.bound_us:.1f} us at least: it does not write them all",
    )
