"""Copies, joins, pooling and resizing of images as calls of CUDA headers."""

from math import prod

from stitch_planner.stitcher.emit.call_text import CallText, braced, enumerator, flag
from stitch_planner.stitcher.emit.cuda.operands import aligned
from stitch_planner.stitcher.lower.kernel_ir import SCALAR_BYTES
from stitch_planner.stitcher.lower.operations import (
    ConcatOp,
    ResizeOp,
    StridedCopyOp,
    VolumePoolOp,
    VolumeWindow,
)
from stitch_planner.stitcher.lower.views import memory_order

_LARGEST_WINDOW, _LARGEST_STRIDE = 5, 3
"""Of pooling that is unrolled: beyond it, neighbours share little, or code and registers grow."""
_LARGEST_VOLUME = 64
"""Elements of windows whose sizes are constants: beyond it, code grows."""
_WIDTHS = (4, 2, 1)
"""Neighbours that a thread may move at once."""


def strided_copy(op: StridedCopyOp) -> CallText:
    """restride.cuh."""
    space, (load,), (store,) = memory_order(op.source.shape, (op.source,), (op.out,))
    moving = [dim for dim, size in enumerate(space) if size > 1] or [len(space) - 1]
    turned = min(moving, key=lambda dim: (load.strides[dim] == 0, load.strides[dim], -dim))
    is_turned = turned != len(space) - 1 and load.strides[turned] == 1
    vector = 1
    if not is_turned and load.strides[-1] == store.strides[-1] == 1:
        # What follows the innermost dim has to be aligned, and where each window begins.
        steps = [*load.strides[:-1], *store.strides[:-1], load.offset, store.offset, space[-1]]
        vector = next(width for width in _WIDTHS if all(step % width == 0 for step in steps))
    options = (
        f"{{/*rank=*/{len(space)}, /*turned=*/{turned if is_turned else len(space) - 1}, "
        f"/*shape=*/{braced(space)}, /*from=*/{braced(load.strides)}, /*to=*/{braced(store.strides)}}}"
    )
    return CallText(
        "stitch/cuda/restride.cuh",
        f"stitch::cuda::StridedCopy<{flag(is_turned)}, {vector}>",
        (options,),
        ("call", op.source, op.out),
    )


def concat(op: ConcatOp) -> CallText:
    """concat.cuh."""
    steps = (*op.widths, op.begin, op.total, op.out.offset, *(view.offset for view in op.sources))
    size = SCALAR_BYTES[op.out.dtype]
    widths = [width for width in _WIDTHS if width * size <= 16]
    vector = next(width for width in widths if all(step % width == 0 for step in steps))
    options = f"{{/*outer=*/{op.outer}, /*count=*/{len(op.widths)}, /*width=*/{braced(op.widths)}}}"
    return CallText(
        "stitch/cuda/concat.cuh",
        f"stitch::cuda::Concat<uint{8 * size}_t, {vector}>",
        (options, str(op.begin), str(op.total)),
        ("call", op.sources, op.out),
    )


def pool(op: VolumePoolOp) -> CallText:
    """pool.cuh."""
    images, channels = op.source.shape[:2]
    vector = 4 if op.channels_last and channels % 4 == 0 and aligned(op.source, op.out) else 1
    kinds = f"{flag(op.window is None)}, {flag(op.channels_last)}, {vector}"
    dims = ", ".join(_dim(op, dim) for dim in range(3))
    window = op.window or VolumeWindow((1, 1, 1), (1, 1, 1), (0, 0, 0))
    options = (
        f"{{/*images=*/{images}, /*channels=*/{channels}, {dims}, "
        f"/*count_padding=*/{flag(window.count_padding)}, /*divisor=*/{window.divisor or 0}}}"
    )
    name = "Pool"
    if _is_unrolled(op):
        rows = next(rows for rows in (8, 4, 2, 1) if rows <= max(op.out.shape[3], 1))
        name, kinds = "PlanarPool", f"{window.kernel[1]}, {window.kernel[2]}, {window.stride[1]}, {rows}"
    elif op.window is not None and prod(window.kernel) <= _LARGEST_VOLUME:
        kinds = f"{kinds}, {', '.join(map(str, window.kernel))}"
    return CallText(
        "stitch/cuda/pool.cuh",
        f"stitch::cuda::{name}<stitch::cuda::Pooling::{enumerator(op.kind)}, {kinds}>",
        (options,),
        ("call", op.source, op.out),
        chosen=f"channels {'last' if op.channels_last else 'first'}",
    )


def _is_unrolled(op: VolumePoolOp) -> bool:
    """Whether the windows are small, on planes that lie together."""
    window = op.window
    if window is None or op.channels_last or window.dilation != (1, 1, 1):
        return False
    depth = window.kernel[0], window.stride[0], window.padding[0]
    square = window.stride[1] == window.stride[2] <= _LARGEST_STRIDE
    return depth == (1, 1, 0) and square and max(window.kernel) <= _LARGEST_WINDOW


def _dim(op: VolumePoolOp, dim: int) -> str:
    """A stitch::cuda::PoolDim."""
    name = ("depth", "height", "width")[dim]
    sizes = op.source.shape[2 + dim], op.out.shape[2 + dim]
    window = op.window
    numbers = (
        sizes
        if window is None
        else (*sizes, window.kernel[dim], window.stride[dim], window.padding[dim], window.dilation[dim])
    )
    return f"/*{name}=*/{braced(numbers)}"


def resize(op: ResizeOp) -> CallText:
    """resize.cuh."""
    images, channels, height, width = op.source.shape
    vector = 4 if op.channels_last and channels % 4 == 0 and aligned(op.source, op.out) else 1
    scale = ", ".join(map(repr, op.scale))
    options = (
        f"{{/*images=*/{images}, /*channels=*/{channels}, /*input=*/{braced((height, width))}, "
        f"/*output=*/{braced(op.out.shape[2:])}, /*scale=*/{{{scale}}}, "
        f"/*align_corners=*/{flag(op.align_corners)}}}"
    )
    return CallText(
        "stitch/cuda/resize.cuh",
        f"stitch::cuda::Upsample<stitch::cuda::Resize::{enumerator(op.kind)}, {flag(op.channels_last)}, "
        f"{vector}>",
        (options,),
        ("call", op.source, op.out),
    )
