"""Reductions over everything, cut into chunks so that all threads take part."""

from collections.abc import Callable
from dataclasses import replace
from math import prod

from stitch_planner.stitcher.lower.kernel_ir import Access, Body, Instr, RowKernel, View
from stitch_planner.stitcher.lower.scalar_bodies import needed

MIN_ELEMENTS = 1 << 15
"""Below this many elements one thread is done before others would wake."""
MAX_CHUNKS = 256


def split_reduction(kernel: RowKernel, scratch: Callable[[int], View]) -> list[RowKernel]:
    """The kernel as one for each chunk and one that joins them, or alone where that does not pay or fit.

    Args:
        kernel: any row kernel. Only those with one row, one reduction and per-row results are cut.
        scratch: makes a buffer for that many partial results.
    """
    chunks = _chunks(kernel)
    instrs = kernel.body.instrs
    reductions = [place for place, instr in enumerate(instrs) if instr.op == "reduce"]
    per_row = not any(any(access.strides[len(kernel.outer) :]) for access in kernel.stores)
    if chunks is None or len(reductions) != 1 or not per_row:
        return [kernel]
    partial = scratch(chunks)
    at = reductions[0]
    return [_first(kernel, at, chunks, partial), _second(kernel, at, chunks, partial)]


def _chunks(kernel: RowKernel) -> int | None:
    """How many equal chunks: at least 8, as many as divide the row, up to the maximum."""
    if prod(kernel.outer) != 1 or len(kernel.inner) != 1 or kernel.inner[0] < MIN_ELEMENTS:
        return None
    # Equal chunks only: the kernels' sizes are compile-time constants, and a rest would need a third kernel.
    return next((count for count in range(MAX_CHUNKS, 7, -1) if kernel.inner[0] % count == 0), None)


def _first(kernel: RowKernel, at: int, chunks: int, partial: View) -> RowKernel:
    length = kernel.inner[0] // chunks
    loads = tuple(
        # Chunk c begins c * length elements further along the same walk.
        replace(access, strides=(access.strides[-1] * length, access.strides[-1]))
        for access in kernel.loads
    )
    # In SSA order everything that the reduction needs stands before it.
    body = Body(kernel.body.instrs[: at + 1], (at,))
    store = Access(partial.buffer, (1, 0))
    return replace(
        kernel,
        name=f"{kernel.name}_chunks",
        comment=f"{kernel.comment}, in {chunks} chunks",
        outer=(chunks,),
        inner=(length,),
        loads=loads,
        body=body,
        stores=(store,),
    )


def _second(kernel: RowKernel, at: int, chunks: int, partial: View) -> RowKernel:
    old = kernel.body.instrs
    loads: list[Access] = [Access(partial.buffer, (0, 1))]
    instrs = [Instr("load", (), old[at].dtype, 0), replace(old[at], args=(0,))]
    # Old instruction to new: the reduction itself is instruction 1, over the partial results that 0 loads.
    moved = {at: 1}
    for place in needed(old, list(kernel.body.results)):
        if place in moved:
            continue
        instr = replace(old[place], args=tuple(moved[arg] for arg in old[place].args))
        if instr.op == "load":
            assert isinstance(instr.value, int)
            loads.append(replace(kernel.loads[instr.value], strides=(0, 0)))
            instr = replace(instr, value=len(loads) - 1)
        moved[place] = len(instrs)
        instrs.append(instr)
    stores = tuple(replace(access, strides=(0, 0)) for access in kernel.stores)
    body = Body(tuple(instrs), tuple(moved[place] for place in kernel.body.results))
    return replace(
        kernel,
        comment=f"{kernel.comment}, joined",
        outer=(1,),
        inner=(chunks,),
        loads=tuple(loads),
        body=body,
        stores=stores,
    )
