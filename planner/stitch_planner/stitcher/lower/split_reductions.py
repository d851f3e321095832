"""Reductions whose rows are cut into chunks, so that more threads take part than there are rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

from stitch_planner.stitcher.lower.kernel_ir import (
    Access,
    Body,
    ColumnKernel,
    Instr,
    Kernel,
    PointwiseKernel,
    RowKernel,
    Scalar,
    View,
    row_major,
)
from stitch_planner.stitcher.lower.scalar_bodies import needed
from stitch_planner.stitcher.lower.views import collapse

MIN_ELEMENTS = 1 << 15
"""Below this many elements one thread is done before others would wake."""
MAX_CHUNKS = 256

ReductionT = TypeVar("ReductionT", RowKernel, ColumnKernel)
Scratch = Callable[[int, Scalar], View]
"""Makes a buffer for that many partial results of a type."""
Splitter = Callable[[RowKernel | ColumnKernel, Scratch], Sequence[Kernel]]


def split_reduction(kernel: RowKernel | ColumnKernel, scratch: Scratch) -> Sequence[Kernel]:
    """The kernel as one for each chunk and one that joins them, or alone where that does not pay or fit.

    For threads of a CPU: only kernels with one row, one reduction and per-row results are cut.
    """
    reductions = [instr for instr in kernel.body.instrs if instr.op == "reduce"]
    fits = isinstance(kernel, RowKernel) and prod(kernel.outer) == 1 and len(kernel.inner) == 1
    if not fits or len(reductions) != 1 or _element_stores(kernel) or kernel.inner[0] < MIN_ELEMENTS:
        return [kernel]
    # At least 8, as many as divide the row, up to the maximum.
    chunks = next((count for count in range(MAX_CHUNKS, 7, -1) if kernel.inner[0] % count == 0), None)
    return [kernel] if chunks is None else cut(kernel, chunks, scratch)


def can_cut(kernel: RowKernel | ColumnKernel) -> bool:
    """Whether chunks of a row can be reduced on their own: no reduction depends on another."""
    instrs = kernel.body.instrs
    behind: list[bool] = []
    for instr in instrs:
        depends = any(behind[arg] for arg in instr.args)
        if instr.op == "index" or (instr.op == "reduce" and depends):
            return False
        behind.append(depends or instr.op == "reduce")
    return any(instr.op == "reduce" for instr in instrs)


def cut(kernel: ReductionT, chunks: int, scratch: Scratch) -> list[Kernel]:
    """The kernel as one for each of equal chunks, one that joins them, and one for element-wise results.

    Equal chunks only: sizes are compile-time constants, and a rest would need one more kernel.

    Args:
        kernel: one that `can_cut`.
        chunks: how many; divides the outermost reduced dim.
        scratch: makes room for partial results.
    """
    rows = prod(kernel.outer)
    reduced = [place for place, instr in enumerate(kernel.body.instrs) if instr.op == "reduce"]
    partials = [scratch(rows * chunks, kernel.body.instrs[place].dtype) for place in reduced]
    per_row = [pair for pair in zip(kernel.stores, kernel.body.results, strict=True) if not _moves(pair[0], kernel)]
    parts: list[Kernel] = [_first(kernel, reduced, chunks, partials)]
    if not _element_stores(kernel):
        parts.append(_joined(kernel, reduced, chunks, partials, per_row))
        return parts
    totals = [scratch(rows, kernel.body.instrs[place].dtype) for place in reduced]
    inner = (0,) * len(kernel.inner)
    kept = [(Access(view.buffer, (*row_major(kernel.outer), *inner)), place) for view, place in zip(totals, reduced, strict=True)]
    parts.append(_joined(kernel, reduced, chunks, partials, [*per_row, *kept]))
    parts.append(_elements(kernel, dict(zip(reduced, (access for access, _ in kept), strict=True))))
    return parts


def _moves(access: Access, kernel: RowKernel | ColumnKernel) -> bool:
    steps = zip(access.strides[len(kernel.outer) :], kernel.inner, strict=True)
    return any(stride != 0 and size > 1 for stride, size in steps)


def _element_stores(kernel: RowKernel | ColumnKernel) -> list[tuple[Access, int]]:
    pairs = zip(kernel.stores, kernel.body.results, strict=True)
    return [(store, result) for store, result in pairs if _moves(store, kernel)]


def _first(kernel: ReductionT, reduced: list[int], chunks: int, partials: list[View]) -> ReductionT:
    """Reduces each chunk. Chunks are the innermost kept dim of rows, the outermost of columns."""
    count, length = len(kernel.outer), kernel.inner[0] // chunks
    by_rows = isinstance(kernel, RowKernel)

    def chunked(strides: tuple[int, ...], chunk: int, inner: tuple[int, ...]) -> tuple[int, ...]:
        outer = strides[:count]
        return (*outer, chunk, *inner) if by_rows else (chunk, *outer, *inner)

    roots = [kernel.body.instrs[place].args[0] for place in reduced]
    loads, instrs, moved = _extract(kernel, roots, {})
    results: list[int] = []
    for place, root in zip(reduced, roots, strict=True):
        results.append(len(instrs))
        instrs.append(replace(kernel.body.instrs[place], args=(moved[root],)))
    walks = tuple(
        # Chunk c begins c * length elements further along the same walk.
        replace(load, strides=chunked(load.strides, load.strides[count] * length, load.strides[count:]))
        for load in loads
    )
    outer = (*kernel.outer, chunks) if by_rows else (chunks, *kernel.outer)
    inner = (length, *kernel.inner[1:])
    stores = tuple(Access(view.buffer, (*row_major(outer), *(0 for _ in inner))) for view in partials)
    return replace(
        kernel,
        name=f"{kernel.name}_chunks",
        comment=f"{kernel.comment}, in {chunks} chunks",
        outer=outer,
        inner=inner,
        loads=walks,
        body=Body(tuple(instrs), tuple(results)),
        stores=stores,
    )


def _joined(
    kernel: ReductionT,
    reduced: list[int],
    chunks: int,
    partials: list[View],
    wanted: Sequence[tuple[Access, int]],
) -> ReductionT:
    """Reduces the chunks' results, and computes what is one for each row."""
    count = len(kernel.outer)
    outer = row_major(kernel.outer)
    if isinstance(kernel, RowKernel):
        strides = (*(stride * chunks for stride in outer), 1)
    else:
        strides = (*outer, prod(kernel.outer))
    loads = [Access(view.buffer, strides) for view in partials]
    instrs: list[Instr] = []
    moved: dict[int, int] = {}
    for number, place in enumerate(reduced):
        old = kernel.body.instrs[place]
        instrs.append(Instr("load", (), old.dtype, number))
        moved[place] = len(instrs)
        instrs.append(replace(old, args=(len(instrs) - 1,)))
    more, instrs, moved = _extract(kernel, [place for _, place in wanted], moved, instrs, len(loads))
    loads += [replace(load, strides=(*load.strides[:count], 0)) for load in more]
    return replace(
        kernel,
        comment=f"{kernel.comment}, joined",
        inner=(chunks,),
        loads=tuple(loads),
        body=Body(tuple(instrs), tuple(moved[place] for _, place in wanted)),
        stores=tuple(replace(access, strides=(*access.strides[:count], 0)) for access, _ in wanted),
    )


def _elements(kernel: RowKernel | ColumnKernel, totals: Mapping[int, Access]) -> PointwiseKernel:
    """The element-wise results, from the operands and the totals of rows."""
    pairs = _element_stores(kernel)
    loads = list(totals.values())
    instrs: list[Instr] = []
    moved: dict[int, int] = {}
    for number, place in enumerate(totals):
        moved[place] = len(instrs)
        instrs.append(Instr("load", (), kernel.body.instrs[place].dtype, number))
    more, instrs, moved = _extract(kernel, [place for _, place in pairs], moved, instrs, len(loads))
    walks = [*(store for store, _ in pairs), *loads, *more]
    shape = (*kernel.outer, *kernel.inner)
    order = sorted(range(len(shape)), key=lambda dim: (-walks[0].strides[dim], dim))
    sizes, strides = collapse([shape[d] for d in order], [[w.strides[d] for d in order] for w in walks])
    made = [replace(walk, strides=tuple(steps)) for walk, steps in zip(walks, strides, strict=True)]
    return PointwiseKernel(
        f"{kernel.name}_elements",
        f"{kernel.comment}, element by element",
        kernel.nodes,
        tuple(sizes),
        tuple(made[len(pairs) :]),
        Body(tuple(instrs), tuple(moved[place] for _, place in pairs)),
        tuple(made[: len(pairs)]),
    )


def _extract(
    kernel: RowKernel | ColumnKernel,
    roots: Sequence[int],
    known: Mapping[int, int],
    instrs: Sequence[Instr] = (),
    first_load: int = 0,
) -> tuple[list[Access], list[Instr], dict[int, int]]:
    """The instructions that `roots` need behind those given, where those in `known` stand there already.

    Returns:
        The loads that they use (numbered from `first_load`), all instructions, and old place to new.
    """
    old = kernel.body.instrs
    loads: list[Access] = []
    made, moved = list(instrs), dict(known)
    for place in needed(old, list(roots)):
        if place in moved:
            continue
        instr = replace(old[place], args=tuple(moved[arg] for arg in old[place].args))
        if instr.op == "load":
            assert isinstance(instr.value, int)
            loads.append(kernel.loads[instr.value])
            instr = replace(instr, value=first_load + len(loads) - 1)
        moved[place] = len(made)
        made.append(instr)
    return loads, made, moved
