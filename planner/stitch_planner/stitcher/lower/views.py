"""Arithmetic on windows: what reshapes, permutations and slices do to strides, and loop orders."""

from collections.abc import Sequence
from math import prod

from stitch_planner.stitcher.lower.kernel_ir import Access, View, row_major


def reshape(view: View, shape: tuple[int, ...]) -> View | None:
    """The window under another shape; None when only a copy can have it (as torch.Tensor.view decides)."""
    strides = _reshaped_strides(view.shape, view.strides, shape)
    return None if strides is None else View(view.buffer, shape, strides, view.offset)


def permute(view: View, dims: Sequence[int]) -> View:
    """The window with its dims reordered."""
    return View(
        view.buffer,
        tuple(view.shape[d] for d in dims),
        tuple(view.strides[d] for d in dims),
        view.offset,
    )


def expand(view: View, shape: tuple[int, ...]) -> View:
    """The window broadcast to `shape` by torch's rules (dims align at the right)."""
    missing = len(shape) - len(view.shape)
    sizes = (1,) * missing + view.shape
    strides = (0,) * missing + view.strides
    return View(
        view.buffer,
        shape,
        tuple(0 if size == 1 else s for size, s in zip(sizes, strides, strict=True)),
        view.offset,
    )


def slice_dim(view: View, dim: int, start: int, length: int, step: int = 1) -> View:
    """The window narrowed to `length` positions of `dim` from `start` on, `step` apart."""
    shape, strides = list(view.shape), list(view.strides)
    offset = view.offset + start * strides[dim]
    shape[dim], strides[dim] = length, strides[dim] * step
    return View(view.buffer, tuple(shape), tuple(strides), offset)


def drop_dim(view: View, dim: int, position: int = 0) -> View:
    """The window at `position` of `dim`, without that dim."""
    shape, strides = list(view.shape), list(view.strides)
    offset = view.offset + position * strides.pop(dim)
    shape.pop(dim)
    return View(view.buffer, tuple(shape), tuple(strides), offset)


def access(view: View, space: tuple[int, ...]) -> Access:
    """How a kernel over `space` (torch shape, not reordered yet) reads or writes the broadcast window."""
    return Access(view.buffer, expand(view, space).strides, view.offset)


def memory_order(
    space: tuple[int, ...], loads: Sequence[View], stores: Sequence[View]
) -> tuple[tuple[int, ...], tuple[Access, ...], tuple[Access, ...]]:
    """Loop dims in memory order of the first store (outermost first), collapsed, with everyone's strides."""
    walks = [access(v, space) for v in (*stores, *loads)]
    # The first store leads, so that writes go through memory in order.
    dims = sorted(range(len(space)), key=lambda d: (-abs(walks[0].strides[d]), d))
    sizes, strides = collapse([space[d] for d in dims], [[w.strides[d] for d in dims] for w in walks])
    done = [Access(w.buffer, tuple(s), w.offset) for w, s in zip(walks, strides, strict=True)]
    return tuple(sizes), tuple(done[len(stores) :]), tuple(done[: len(stores)])


def collapse(sizes: Sequence[int], walks: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Loop dims with neighbours merged where every walk steps through both as through one; never empty."""
    kept: list[int] = []
    merged: list[list[int]] = [[] for _ in walks]
    for dim, size in enumerate(sizes):
        if size == 1:
            continue
        # Two dims are one loop where the outer stride is the inner one times the inner size, for every
        # operand.
        if kept and all(m[-1] == w[dim] * size for m, w in zip(merged, walks, strict=True)):
            kept[-1] *= size
            for m, w in zip(merged, walks, strict=True):
                m[-1] = w[dim]
            continue
        kept.append(size)
        for m, w in zip(merged, walks, strict=True):
            m.append(w[dim])
    if not kept:
        return [1], [[0] for _ in walks]
    return kept, merged


def _reshaped_strides(
    old: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides of `new` over the same memory, or None. Works through groups of dims of equal size."""
    if prod(old) == 0 or prod(old) != prod(new):
        return row_major(new) if prod(old) == prod(new) else None
    # Blocks are the longest stretches with one stride. A new dim may divide a block but never reach across
    # two.
    blocks, (block_strides,) = collapse(old, [strides])
    result: list[int] = []
    place = len(blocks) - 1
    room = blocks[place]
    step = block_strides[place]
    for size in reversed(new):
        if size == 1:
            # The stride of a dim of size 1 is never used.
            result.append(step)
            continue
        if room == 1:
            place -= 1
            room, step = blocks[place], block_strides[place]
        if room % size:
            return None
        result.append(step)
        step *= size
        room //= size
    return tuple(reversed(result))
