"""Convolutions as calls of the package's CUDA headers."""

from stitch_planner.stitcher.emit.call_text import CallArgument, CallText, braced, flag
from stitch_planner.stitcher.lower.cuda.image_plan import DIRECT_PIXELS, kind_of
from stitch_planner.stitcher.lower.operations import ConvOp, Normalisation, Pair, PostOp, Triple, VolumeConvOp
from stitch_planner.stitcher.lower.templates.conv import ConvShape

_LARGEST_WINDOW = 7
"""Height and width of the windows that the depthwise kernel unrolls; registers end there."""
_LARGEST_STRIDE = 2
"""Beyond it the depthwise kernel reads pixels that no window of its tile covers."""
_PLANAR_ROWS = 8
"""Results of a column that a thread of the planar depthwise kernel computes: rows of the source are read once
for all windows on them."""
_MOST_TILES = 4
"""Of volume_tiles.cuh: sums of four tiles take 64 registers of a thread."""
_OWN = "a kernel of the program's own, float32"
_FEWEST_THREADS = 1 << 16
"""Of the depthwise kernel: half of what a large GPU (132 multiprocessors of 2048 threads) holds with the 100
registers a thread that the largest tile takes."""


def conv(op: ConvOp) -> CallText:
    """depthwise.cuh where every channel has a window of its own, else conv.cuh: cuDNN."""
    fold = _folded(op.norm)
    run = ("call", op.source, op.out, *op.operands)
    if op.planar:
        return _planar(op, fold, run)
    if is_depthwise(op):
        vector = next(width for width in (4, 2, 1) if op.channels[0] % width == 0)
        numbers = (*op.kernel, op.stride[1], vector, *depthwise_tile(op, vector))
        return CallText(
            "stitch/cuda/depthwise.cuh",
            f"stitch::cuda::DepthwiseConv<{', '.join(map(str, numbers))}>",
            ("call", _options(op), op.weight, op.bias, *fold),
            run,
            chosen=_OWN,
        )
    return CallText(
        "stitch/cuda/conv.cuh",
        "stitch::cuda::Conv",
        ("dnn", "call", _options(op), op.weight, op.bias, *fold),
        run,
        chosen=f"{_precision('cuDNN', op)}, measured at initialisation",
    )


def _planar(op: ConvOp, fold: tuple[CallArgument, ...], run: tuple[CallArgument, ...]) -> CallText:
    """planar_conv.cuh."""
    shape = ConvShape(op.groups, op.kernel, op.stride, op.padding, op.dilation, op.transposed)
    kind = kind_of(shape, op.source.shape, op.out.shape)
    numbers: tuple[int, ...] = ()
    library: tuple[CallArgument, ...] = ()
    if kind == "product":
        name, chosen, library = "PlanarProduct", _precision("cuBLASLt", op), ("lib",)
    elif kind == "depthwise":
        rows = _PLANAR_ROWS if op.out.shape[2] > _PLANAR_ROWS // 2 else _PLANAR_ROWS // 2
        name, chosen = "PlanarDepthwise", _OWN
        numbers = (*op.kernel, op.stride[0], rows)
    else:
        name, chosen = "PlanarDirect", _OWN
        numbers = (*op.channels, *op.kernel, DIRECT_PIXELS)
    options = _options(op), str(op.out.strides[0])
    return CallText(
        "stitch/cuda/planar_conv.cuh",
        f"stitch::cuda::{name}" + (f"<{', '.join(map(str, numbers))}>" if numbers else ""),
        (*library, "call", *options, op.weight, op.bias, *fold),
        run,
        chosen=f"channels first; {chosen}",
    )


def volume_conv(op: VolumeConvOp) -> CallText:
    """volume_conv.cuh: cuDNN, or tensor cores of our own where TF32 is allowed."""
    rows, warps = volume_tiles(op.out.shape[1] // op.groups) if op.allow_tf32 else (0, 0)
    own = "a kernel of the program's own, or " if op.allow_tf32 else ""
    run: tuple[CallArgument, ...] = ("call", op.source, op.out, *op.operands)
    ending = ""
    if op.ending is not None:
        ending = f", {op.ending.name}"
        run = (*run[:3], op.operands[0] if op.operands else None, op.ending_reads or "{}")
    return CallText(
        "stitch/cuda/volume_conv.cuh",
        f"stitch::cuda::VolumeConv<{rows}, {warps}{ending}>",
        ("dnn", "call", _volume_options(op), op.weight, op.bias, *_folded(op.norm)),
        run,
        chosen=f"{own}{_precision('cuDNN', op)}, measured at initialisation",
    )


def volume_tiles(channels: int) -> Pair:
    """Tiles of 16 channels that a warp of volume_tiles.cuh computes, and warps beside each other."""
    tiles = -(-channels // 16)
    if tiles <= _MOST_TILES:
        return tiles, 1
    # Three tiles a warp where that wastes fewer channels than four.
    return (3 if -(-tiles // 6) * 6 < -(-tiles // 8) * 8 else _MOST_TILES), 2


def _folded(norm: Normalisation | None) -> tuple[CallArgument, ...]:
    return () if norm is None else (norm.gamma, norm.beta, norm.mean, norm.variance, repr(norm.eps))


def _precision(library: str, op: ConvOp | VolumeConvOp) -> str:
    return f"{library}, {'TF32 allowed' if op.allow_tf32 else 'float32'}"


def is_depthwise(op: ConvOp) -> bool:
    """Whether depthwise.cuh computes it."""
    one_each = op.groups == op.channels[0] == op.channels[1] > 1
    small = max(op.kernel) <= _LARGEST_WINDOW and op.stride[1] <= _LARGEST_STRIDE
    square = op.stride[0] == (op.stride[1] if op.kernel[0] > 1 else 1)
    return one_each and small and square and not op.transposed and op.dilation == (1, 1)


def depthwise_tile(op: ConvOp, vector: int) -> Pair:
    """Rows and columns of pixels that a thread of the depthwise kernel computes."""
    n, channels, height, width = op.out.shape
    # Windows that do not overlap by much share too little for large tiles, and those of lines have one row.
    wanted = ((2, 4), (1, 4), (1, 2)) if op.stride[1] == 1 else ((1, 2),)
    tiles = [tile for tile in wanted if tile[0] <= op.kernel[0]]
    for rows, columns in tiles:
        if n * (channels // vector) * -(-height // rows) * -(-width // columns) >= _FEWEST_THREADS:
            return rows, columns
    return tiles[-1]


def _options(op: ConvOp) -> str:
    """A stitch::cuda::ConvOptions."""
    n, _, height, width = op.source.shape
    return _named(
        images=n,
        depth=1,
        height=height,
        width=width,
        out_depth=1,
        out_height=op.out.shape[2],
        out_width=op.out.shape[3],
        in_channels=op.channels[0],
        out_channels=op.channels[1],
        groups=op.groups,
        kernel=braced((*op.kernel, 1)),
        stride=braced((*op.stride, 1)),
        padding=braced((*op.padding, 0)),
        dilation=braced((*op.dilation, 1)),
        transposed=flag(op.transposed),
        has_bias=flag(op.bias is not None or op.norm is not None),
        **_ending(op.post),
        source_first=flag(not op.planar and not op.source.is_channels_last),
        allow_tf32=flag(op.allow_tf32),
    )


def _volume_options(op: VolumeConvOp) -> str:
    """The same for volumes, whose depth the header has behind the other two."""
    n, channels, depth, height, width = op.source.shape
    return _named(
        images=n,
        depth=depth,
        height=height,
        width=width,
        out_depth=op.out.shape[2],
        out_height=op.out.shape[3],
        out_width=op.out.shape[4],
        in_channels=channels,
        out_channels=op.out.shape[1],
        groups=op.groups,
        kernel=_depth_last(op.kernel),
        stride=_depth_last(op.stride),
        padding=_depth_last(op.padding),
        dilation=_depth_last(op.dilation),
        transposed=flag(op.transposed),
        has_bias=flag(op.bias is not None or op.norm is not None),
        **_ending(op.post),
        source_first="false",
        allow_tf32=flag(op.allow_tf32),
    )


def _depth_last(numbers: Triple) -> str:
    return braced((*numbers[1:], numbers[0]))


def _ending(post: tuple[PostOp, ...]) -> dict[str, str]:
    kinds = [item.kind for item in post]
    assert kinds in ([], ["add"], ["relu"], ["add", "relu"]), "`absorbs` takes no more"
    return {"has_residual": flag("add" in kinds), "relu": flag("relu" in kinds)}


def _named(**fields: int | str) -> str:
    """A braced list with the fields' names as comments, since C++17 has no initialisers by name.

    Fields stand in the order in which the header declares them.
    """
    return "{" + ", ".join(f"/*{name}=*/{value}" for name, value in fields.items()) + "}"
