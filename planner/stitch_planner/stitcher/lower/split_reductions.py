"""Reductions whose rows are cut into chunks, so that more threads take part than there are rows."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

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
from stitch_planner.stitcher.lower.scalar_bodies import levels, needed
from stitch_planner.stitcher.lower.views import collapse

MIN_ELEMENTS = 1 << 15
"""Below this many elements one thread is done before others would wake."""
MAX_CHUNKS = 256
NARROW_ELEMENTS = 16
"""Of a piece of memory that fills at most half a line of 128 bytes."""

ReducingKernel = RowKernel | ColumnKernel
Scratch = Callable[[int, Scalar], View]
"""Makes a buffer for that many partial results of a type."""
Splitter = Callable[[ReducingKernel, Scratch], Sequence[Kernel]]


def split_reduction(kernel: ReducingKernel, scratch: Scratch) -> Sequence[Kernel]:
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


def can_cut(kernel: ReducingKernel) -> bool:
    """Whether the kernel reduces, and no value is an index, which would be another one within a chunk."""
    ops = {instr.op for instr in kernel.body.instrs}
    return "reduce" in ops and "index" not in ops


def depths(kernel: ReducingKernel) -> list[int]:
    """How many reductions lie one behind another below each instruction (0: none)."""
    result: list[int] = []
    for instr in kernel.body.instrs:
        below = max((result[arg] for arg in instr.args), default=0)
        result.append(below + (instr.op == "reduce"))
    return result


def apart(kernel: ReducingKernel, scratch: Scratch) -> list[Kernel]:
    """The kernel without its element-wise results, and a kernel that computes those from the rows' values."""
    results = [result for _, result in _element_stores(kernel)]
    used = set(needed(kernel.body.instrs, results))
    values = [place for place in _row_values(kernel) if _is_read(kernel, place, used)]
    totals = _totals(kernel, values, scratch)
    stored = [*_row_stores(kernel), *((access, place) for place, access in totals.items())]
    first = replace(
        kernel,
        body=replace(kernel.body, results=tuple(place for _, place in stored)),
        stores=tuple(access for access, _ in stored),
    )
    return [first, _elements(kernel, totals)]


def is_narrow(kernel: ReducingKernel) -> bool:
    """Whether rows are short pieces of memory, and those of neighbouring rows lie side by side.

    So do the groups of channels of a channels-last image: threads of a warp read whole lines if they reduce
    each channel on its own, as columns.
    """
    if len(kernel.inner) < 2 or kernel.inner[-1] > NARROW_ELEMENTS:
        return False
    moving = [load for load in kernel.loads if all(load.strides)]
    step = len(kernel.outer) - 1
    return bool(moving) and all(
        load.strides[-1] == 1 and load.strides[step] == kernel.inner[-1] for load in moving
    )


def cut(kernel: ReducingKernel, chunks: int, scratch: Scratch) -> list[Kernel]:
    """The kernel as one for each of equal chunks and one that joins them, for each pass.

    Where it has element-wise results, one more computes them. Equal chunks only: sizes are compile-time
    constants, and a rest would need one more kernel. Each place of a narrow row's last dim is a chunk, too.

    Args:
        kernel: one that `can_cut`.
        chunks: how many, at least 2 where the kernel is not narrow; divides the outermost reduced dim.
        scratch: makes room for partial results.
    """
    depth = depths(kernel)
    has_elements = bool(_element_stores(kernel))
    parts: list[Kernel] = []
    known: dict[int, Access] = {}
    last = max(depth)
    everything = set(range(len(depth)))
    for level in range(1, last + 1):
        reduced = [
            place
            for place, instr in enumerate(kernel.body.instrs)
            if instr.op == "reduce" and depth[place] == level
        ]
        count = prod(kernel.outer) * chunks * _across(kernel)
        partials = [scratch(count, kernel.body.instrs[place].dtype) for place in reduced]
        parts.append(_first(kernel, reduced, chunks, partials, known, _numbered("_chunks", level)))
        values = [place for place in _row_values(kernel) if depth[place] == level]
        values = [place for place in values if _is_read(kernel, place, everything)]
        totals = {} if level == last and not has_elements else _totals(kernel, values, scratch)
        wanted = [*(_row_stores(kernel) if level == last else ())]
        wanted += [(access, place) for place, access in totals.items()]
        suffix = "" if level == last else _numbered("_joined", level)
        parts.append(_joined(kernel, reduced, chunks, partials, known, wanted, suffix))
        known |= totals
    return [*parts, _elements(kernel, known)] if has_elements else parts


def _row_values(kernel: ReducingKernel) -> list[int]:
    """Instructions whose values are one for each row, and depend on a reduction."""
    varies = tuple(_moves(load, kernel) for load in kernel.loads)
    level = levels(kernel.body.instrs, varies, len(kernel.outer))
    behind = depths(kernel)
    return [place for place, depth in enumerate(behind) if depth and level[place] == 0]


def _is_read(kernel: ReducingKernel, place: int, used: Collection[int]) -> bool:
    """Whether an element or a later pass needs the row's value itself, and not only what follows from it."""
    instrs, depth, rows = kernel.body.instrs, depths(kernel), set(_row_values(kernel))
    readers = [at for at, instr in enumerate(instrs) if place in instr.args and at in used]
    element = any(place == result for _, result in _element_stores(kernel))
    return element or any(at not in rows or depth[at] > depth[place] for at in readers)


def _numbered(suffix: str, level: int) -> str:
    return suffix if level == 1 else f"{suffix}_{level}"


def _across(kernel: ReducingKernel) -> int:
    return kernel.inner[-1] if is_narrow(kernel) else 1


def _pairs(kernel: ReducingKernel) -> list[tuple[Access, int]]:
    return list(zip(kernel.stores, kernel.body.results, strict=True))


def _row_stores(kernel: ReducingKernel) -> list[tuple[Access, int]]:
    return [pair for pair in _pairs(kernel) if not _moves(pair[0], kernel)]


def _totals(kernel: ReducingKernel, values: Sequence[int], scratch: Scratch) -> dict[int, Access]:
    """Room for values that are one for each row, as the kernel's own space walks over them."""
    strides = (*row_major(kernel.outer), *(0 for _ in kernel.inner))
    rows = prod(kernel.outer)
    return {place: Access(scratch(rows, kernel.body.instrs[place].dtype).buffer, strides) for place in values}


def _moves(access: Access, kernel: ReducingKernel) -> bool:
    steps = zip(access.strides[len(kernel.outer) :], kernel.inner, strict=True)
    return any(stride != 0 and size > 1 for stride, size in steps)


def _element_stores(kernel: ReducingKernel) -> list[tuple[Access, int]]:
    return [(store, result) for store, result in _pairs(kernel) if _moves(store, kernel)]


def _first(
    kernel: ReducingKernel,
    reduced: list[int],
    chunks: int,
    partials: list[View],
    known: Mapping[int, Access],
    suffix: str,
) -> ReducingKernel:
    """Reduces each chunk. Chunks are the innermost kept dim of rows, the outermost of columns."""
    count, length = len(kernel.outer), kernel.inner[0] // chunks
    narrow = is_narrow(kernel)

    def walk(
        outer: tuple[int, ...], chunk: int, inner: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if narrow:
            return (chunk, *outer, inner[-1]), inner[:-1]
        return ((*outer, chunk) if isinstance(kernel, RowKernel) else (chunk, *outer)), inner

    roots = [kernel.body.instrs[place].args[0] for place in reduced]
    loads, instrs, moved = _extract(kernel, roots, known)
    results: list[int] = []
    for place, root in zip(reduced, roots, strict=True):
        results.append(len(instrs))
        instrs.append(replace(kernel.body.instrs[place], args=(moved[root],)))
    walks: list[Access] = []
    for load in loads:
        # Chunk c begins c * length elements further along the same walk.
        steps = walk(load.strides[:count], load.strides[count] * length, load.strides[count:])
        walks.append(replace(load, strides=(*steps[0], *steps[1])))
    outer, inner = walk(kernel.outer, chunks, (length, *kernel.inner[1:]))
    kind = ColumnKernel if narrow else type(kernel)
    return kind(
        f"{kernel.name}{suffix}",
        f"{kernel.comment}, in {chunks} chunks",
        kernel.nodes,
        outer,
        inner,
        tuple(walks),
        Body(tuple(instrs), tuple(results)),
        tuple(Access(view.buffer, (*row_major(outer), *(0 for _ in inner))) for view in partials),
    )


def _joined(
    kernel: ReducingKernel,
    reduced: list[int],
    chunks: int,
    partials: list[View],
    known: Mapping[int, Access],
    wanted: Sequence[tuple[Access, int]],
    suffix: str,
) -> ReducingKernel:
    """Reduces the chunks' results, and computes what is one for each row."""
    count = len(kernel.outer)
    across = _across(kernel)
    inner = (chunks, across) if is_narrow(kernel) else (chunks,)
    if isinstance(kernel, ColumnKernel) or is_narrow(kernel):
        steps = row_major((chunks, *kernel.outer, across))
        strides = (*steps[1:-1], steps[0], 1)[: count + len(inner)]
    else:
        strides = row_major((*kernel.outer, chunks))
    loads = [Access(view.buffer, strides) for view in partials]
    instrs: list[Instr] = []
    moved: dict[int, int] = {}
    for number, place in enumerate(reduced):
        old = kernel.body.instrs[place]
        instrs.append(Instr("load", (), old.dtype, number))
        moved[place] = len(instrs)
        instrs.append(replace(old, args=(len(instrs) - 1,)))
    more, instrs, moved = _extract(
        kernel, [place for _, place in wanted], known, moved=moved, instrs=instrs, first_load=len(loads)
    )
    rest = (0,) * len(inner)
    loads += [replace(load, strides=(*load.strides[:count], *rest)) for load in more]
    return replace(
        kernel,
        name=f"{kernel.name}{suffix}",
        comment=f"{kernel.comment}, joined",
        inner=inner,
        loads=tuple(loads),
        body=Body(tuple(instrs), tuple(moved[place] for _, place in wanted)),
        stores=tuple(replace(access, strides=(*access.strides[:count], *rest)) for access, _ in wanted),
    )


def _elements(kernel: ReducingKernel, totals: Mapping[int, Access]) -> PointwiseKernel:
    """The element-wise results, from the operands and the totals of rows; in the order of the first."""
    pairs = _element_stores(kernel)
    loads, instrs, moved = _extract(kernel, [place for _, place in pairs], totals)
    walks = [*(store for store, _ in pairs), *loads]
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
    kernel: ReducingKernel,
    roots: Sequence[int],
    totals: Mapping[int, Access],
    *,
    moved: Mapping[int, int] | None = None,
    instrs: Sequence[Instr] = (),
    first_load: int = 0,
) -> tuple[list[Access], list[Instr], dict[int, int]]:
    """The instructions that `roots` need behind those given; values with a total become loads of it.

    Returns:
        The loads that they use (numbered from `first_load`), all instructions, and old place to new.
    """
    old = kernel.body.instrs
    loads: list[Access] = []
    made, places = list(instrs), dict(moved or {})

    def load(access: Access, instr: Instr) -> Instr:
        loads.append(access)
        return replace(instr, op="load", args=(), value=first_load + len(loads) - 1)

    for place in needed(old, roots, totals.keys() | places.keys()):
        if place in places:
            continue
        instr = old[place]
        if place in totals:
            instr = load(totals[place], instr)
        elif instr.op == "load":
            assert isinstance(instr.value, int)
            instr = load(kernel.loads[instr.value], instr)
        else:
            instr = replace(instr, args=tuple(places[arg] for arg in instr.args))
        places[place] = len(made)
        made.append(instr)
    return loads, made, places
