"""Copies between orders of memory: a kernel, or a call that turns tiles (layout.h, restride.cuh)."""

from stitch_planner.stitcher.lower.kernel_ir import Kernel, LibraryCall, View
from stitch_planner.stitcher.lower.lowering import copy_kernel
from stitch_planner.stitcher.lower.operations import StridedCopyOp

WORTH_TILES = 4096
"""Elements from which a transpose is a call: layout.h is six to nine times as fast as a loop with one strided
side on the machine that it was measured on, and as fast below."""


def tiled_copy(name: str, source: View, target: View, what: str) -> Kernel:
    """The kernel or call that copies `source` to `target` (equal shapes)."""
    # A broadcast (stride 0) reads few values: there is nothing to transpose in tiles.
    transposes = innermost(source) != innermost(target) and 0 not in source.strides
    if source.dtype == "float32" and source.numel >= WORTH_TILES and transposes:
        return layout_call(name, source, target, what)
    return copy_kernel(name, source, target, what)


def layout_call(name: str, source: View, target: View, what: str, nodes: tuple[str, ...] = ()) -> LibraryCall:
    """A call that copies float32 `source` to `target` (equal shapes)."""
    return LibraryCall(
        name,
        f"copies {what} {list(source.shape)} into another order of memory",
        nodes,
        StridedCopyOp(source, target),
    )


def innermost(view: View) -> int | None:
    """The dim whose elements lie side by side."""
    dims = [dim for dim, size in enumerate(view.shape) if size > 1]
    return min(dims, key=lambda dim: view.strides[dim], default=None)
