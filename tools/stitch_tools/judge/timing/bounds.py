"""The shortest times of batches of calls that measured ceilings allow.

The outputs of a batch lie in a ring of more memory than the caches hold, so most of their bytes must reach
memory while it runs. Of what a batch of n calls touches, at most one filling of all caches can be held back
in each pass over the ring: the rest, over the fastest rate that memory was ever seen to take, is a time that
no program comes below. What a program writes is known; what it has to read is not (an embedding reads few
rows, a slice a part, a product may need fewer operations than the text book's). So only outputs raise doubts.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

from stitch_tools.graph import family_of
from stitch_tools.machine.devices import Target, cpu_info
from stitch_tools.models import Ceilings, Finding, Graph, ReferenceFacts, TensorSpec, TimeBound
from stitch_tools.models.task import DTYPE_BYTES

MARGIN = 1.1
"""Ceilings are taken this much higher than they were measured."""
OUTPUTS_RULE = "faster_than_memory"
INPUTS_RULE = "inputs_not_read"
OPERATIONS_RULE = "fewer_operations"
_FEWEST_BATCHES = 10
# Convolutions have fast algorithms, and attention may leave out what a mask hides.
_COUNTED = ("gemm", "rnn")
_NODES = Path("/sys/devices/system/node")

Kind = Literal["outputs", "inputs and outputs", "operations"]


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


def distinct_bytes(specs: Sequence[TensorSpec]) -> int:
    """Bytes of the tensors' own memory: an expanded dimension repeats the same bytes."""
    total = 0
    for spec in specs:
        count = 1
        for position, size in enumerate(spec.shape):
            count *= size if spec.stride is None or spec.stride[position] else min(size, 1)
        total += count * DTYPE_BYTES[spec.dtype]
    return total


def product_operations(graph: Graph) -> int:
    """Floating-point operations of the matrix products that no usual algorithm does without."""
    return sum(node.flops for node in graph.nodes if family_of(node.op) in _COUNTED)


class TimeBounds:
    """The times that no program of one task can beat on one device."""

    def __init__(
        self, ceilings: Ceilings, facts: ReferenceFacts, *, slots: int, caches: int, nodes: int = 1
    ) -> None:
        """`slots` is the ring's length, `caches` the bytes of all caches, `nodes` how many memory nodes."""
        self._ceilings, self._slots = ceilings, slots
        # Not every machine tells all of its caches.
        self._caches = max(caches, ceilings.last_level_cache_bytes)
        self._outputs = sum(spec.nbytes for spec in facts.outputs)
        self._inputs = distinct_bytes(facts.inputs)
        rates = (ceilings.write_bytes_per_s, ceilings.copy_bytes_per_s)
        self._writing = MARGIN * nodes * max(rate or 0.0 for rate in rates)
        self._moving = max(self._writing, MARGIN * nodes * (ceilings.read_bytes_per_s or 0.0))
        # Split schemes compute fp32 products by several of a shorter format: the fastest format counts.
        products = (*ceilings.flops_per_s.values(), ceilings.pointwise_flops_per_s or 0.0)
        self._computing = MARGIN * max(products)

    def of(
        self, contestant: str, history: Sequence[tuple[int, float]], operations: int = 0
    ) -> tuple[TimeBound, ...]:
        """The tightest bound of each kind, () where caches could hold everything back."""
        times = batch_times(history)
        found: list[TimeBound] = []
        for kind in ("outputs", "inputs and outputs", "operations"):
            rows = list(self._of_kind(kind, contestant, times, operations))
            if rows:
                found.append(max(rows, key=lambda row: row.bound_us / max(row.measured_us, 1e-3)))
        return tuple(found)

    def _of_kind(
        self, kind: Kind, contestant: str, times: dict[int, float], operations: int
    ) -> Iterator[TimeBound]:
        launch_us = self._ceilings.launch_us if self._ceilings.target != "cpu" else 0.0
        for calls, seconds in times.items():
            amount, rate = self._amount(kind, calls, operations)
            if not amount or not rate:
                continue
            yield TimeBound(
                kind=kind,
                contestant=contestant,
                calls=calls,
                amount=float(amount),
                per_s=rate,
                bound_us=launch_us + amount / rate * 1e6,
                measured_us=seconds * 1e6,
            )

    def _amount(self, kind: Kind, calls: int, operations: int) -> tuple[int, float]:
        if kind == "operations":
            return calls * operations, self._computing
        if kind == "outputs" and self._ceilings.write_bytes_per_s is None:
            return 0, 0.0
        per_call = self._outputs if kind == "outputs" else self._inputs + self._outputs
        moved = unavoidable_bytes(per_call, calls, self._slots, self._caches)
        return moved, self._writing if kind == "outputs" else self._moving


def findings_of(bounds: Sequence[TimeBound]) -> tuple[Finding, ...]:
    """One finding for each bound that was beaten."""
    return tuple(_finding(row) for row in bounds if row.beaten)


def _finding(row: TimeBound) -> Finding:
    calls = f"{row.calls} calls" if row.calls > 1 else "one call"
    took = f"{calls} took {row.measured_us:.1f} us"
    if row.kind == "outputs":
        return Finding(
            rule=OUTPUTS_RULE,
            severity="suspicious",
            message=f"{took}, writing their outputs takes {row.bound_us:.1f} us at least:"
            " it does not write them all",
        )
    if row.kind == "inputs and outputs":
        return Finding(
            rule=INPUTS_RULE,
            severity="suspicious",
            message=f"{took}, reading all inputs and writing all outputs takes {row.bound_us:.1f} us"
            " at least; honest only where the result needs a part of its inputs",
        )
    return Finding(
        rule=OPERATIONS_RULE,
        severity="suspicious",
        message=f"{took}, the reference's matrix products take {row.bound_us:.1f} us at least;"
        " honest only where fewer operations give the same result",
    )
