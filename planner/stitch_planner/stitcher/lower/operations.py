"""The library operations of the kernel IR: what one call computes, on which tensors, with which numbers.

Lowering writes these facts and no target's text; each target's `library_calls` has one function for each of
those that it can emit. Tensors stand in the order in which a call reads them.
"""

import math
from dataclasses import dataclass
from typing import Literal

from stitch_planner.stitcher.lower.kernel_ir import Buffer, LibraryOp, PointwiseKernel, View

Pair = tuple[int, int]
"""Height and width."""
Triple = tuple[int, int, int]
"""Depth, height and width."""
Activation = Literal[
    "none", "relu", "relu6", "leaky_relu", "gelu_erf", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish"
]


@dataclass(frozen=True)
class PostOp:
    """One element-wise operation on a product's or convolution's result, before it is stored."""

    kind: Literal[
        "relu",
        "gelu_erf",
        "gelu_tanh",
        "silu",
        "sigmoid",
        "tanh",
        "clip",
        "linear",
        "add",
        "add_channel",
        "mul",
    ]
    """`add` and `mul` take the next operand, of the result's shape; `add_channel` a value for each column."""
    numbers: tuple[float, ...] = ()
    """clip: low and high; linear: factor and summand; relu: the slope below 0, where it is not 0."""


@dataclass(frozen=True)
class StridedCopyOp(LibraryOp):
    """Copies float32 `source` into another order of memory."""

    source: View
    out: View


@dataclass(frozen=True)
class PackedMatmulOp(LibraryOp):
    """out = post(a @ weight + bias), where the weight is a parameter that is packed at initialisation."""

    weight: View
    """[depth, width], from its buffer's begin."""
    bias: View | None
    a: View
    """[rows, depth], elements of a row side by side."""
    out: View
    operands: tuple[View, ...]
    post: tuple[PostOp, ...]
    weight_transposed: bool
    """Whether the weight lies as [width, depth] in memory."""
    weight_ld: int
    """Elements between its rows in memory."""


@dataclass(frozen=True)
class BatchMatmulOp(LibraryOp):
    """out = post(a @ b) for each of up to two batch dims."""

    a: View
    """[..., rows, depth]"""
    b: View
    """[..., depth, width]"""
    out: View
    operands: tuple[View, ...]
    post: tuple[PostOp, ...]
    batch: Pair
    """Sizes of the batch dims."""
    a_strides: Pair
    """Elements between the matrices along the batch dims; so for `b` and `out`."""
    b_strides: Pair
    out_strides: Pair


@dataclass(frozen=True)
class MatrixLayout:
    """How a batch of matrices lies in memory, in elements."""

    transposed: bool
    ld: int
    batch_stride: int = 0


@dataclass(frozen=True)
class MatmulOp(LibraryOp):
    """out = a @ b + bias + addend, or the ReLU of that, for each matrix of a batch."""

    bias: View | None
    """A parameter with a value a column."""
    a: View
    b: View
    out: View
    addend: View | None
    """Of the result's shape."""
    layouts: tuple[MatrixLayout, MatrixLayout, MatrixLayout]
    """Of a, b and out."""
    allow_tf32: bool
    relu: bool = False
    may_split: bool = False
    """Whether tensor cores over split operands may compute it: with errors of float32, if that is faster."""


@dataclass(frozen=True)
class Normalisation:
    """Statistics of a normalisation in eval mode: (x - mean) / sqrt(variance + eps) * gamma + beta."""

    gamma: View | None
    beta: View | None
    mean: View | None
    variance: View | None
    eps: float


@dataclass(frozen=True)
class ConvOp(LibraryOp):
    """A convolution of channels-last images with constant weights, then `post`.

    A target may let `source` lie as N, C, H, W; where it is `planar`, `out` may be a slice of a wider image.
    """

    weight: View
    bias: View | None
    norm: Normalisation | None
    """Multiplied into the weights at initialisation."""
    source: View
    out: View
    operands: tuple[View, ...]
    post: tuple[PostOp, ...]
    channels: Pair
    """In and out."""
    groups: int
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    transposed: bool
    output_padding: Pair
    allow_tf32: bool = False
    planar: bool = False
    """All images lie as N, C, H, W."""


@dataclass(frozen=True)
class VolumeConvOp(LibraryOp):
    """A convolution of volumes with constant weights, then `post`, then `ending`.

    All volumes are [N, C, D, H, W] and dense.
    """

    weight: View
    bias: View | None
    norm: Normalisation | None
    """Multiplied into the weights at initialisation."""
    source: View
    out: View
    operands: tuple[View, ...]
    post: tuple[PostOp, ...]
    groups: int
    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple
    transposed: bool
    allow_tf32: bool
    ending: PointwiseKernel | None = None
    """Element-wise operations on what `post` gives, which the kernel would read from `ending_source`."""
    ending_source: Buffer | None = None
    """Never stored."""
    ending_reads: tuple[View, ...] = ()
    """What `ending` reads besides."""


@dataclass(frozen=True)
class PoolWindow:
    """Where the windows of a pooling lie."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair | None = None
    """Of maxima only."""
    count_padding: bool | None = None
    """Of averages only: whether padding counts as elements."""
    divisor: int | None = None
    """Of averages only: what a sum is divided by, instead of the number of elements."""


@dataclass(frozen=True)
class PoolOp(LibraryOp):
    """The maxima or averages of windows of images, all [N, C, H, W]."""

    source: View
    out: View
    kind: Literal["max", "average"]
    channels_last: bool
    window: PoolWindow | None
    """None: adaptive, the windows follow from both sizes."""


@dataclass(frozen=True)
class VolumeWindow:
    """Where the windows of a pooling of volumes lie; as PoolWindow."""

    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple = (1, 1, 1)
    count_padding: bool = True
    divisor: int | None = None


@dataclass(frozen=True)
class VolumePoolOp(LibraryOp):
    """The maxima or averages of windows of volumes, all [N, C, D, H, W]; images have a depth of 1."""

    source: View
    out: View
    kind: Literal["max", "average"]
    channels_last: bool
    window: VolumeWindow | None
    """None: adaptive, the windows follow from both sizes."""


@dataclass(frozen=True)
class ConcatOp(LibraryOp):
    """Rows of several tensors side by side: each is [outer, its width], dense."""

    sources: tuple[View, ...]
    widths: tuple[int, ...]
    """Elements of a source's row."""
    out: View
    outer: int
    begin: int
    """Where the first source begins in a row of `out`."""
    total: int
    """Elements of a row of `out`."""


@dataclass(frozen=True)
class ResizeOp(LibraryOp):
    """Images in another size, all [N, C, H, W]."""

    source: View
    out: View
    kind: Literal["nearest", "bilinear"]
    channels_last: bool
    scale: tuple[float, ...]
    """The caller's factors; 0 where the ratio of the sizes counts."""
    align_corners: bool


@dataclass(frozen=True)
class ImageNormOp(LibraryOp):
    """What both norms by an image's own statistics share; residual and activation follow. [N, C, ...]."""

    source: View
    weight: View | None
    bias: View | None
    residual: View | None
    out: View
    channels_last: bool
    area: int
    """Pixels of an image."""
    eps: float
    activation: Activation
    slope: float


@dataclass(frozen=True)
class BatchNormOp(ImageNormOp):
    """Normalisation of each channel by the batch's statistics."""


@dataclass(frozen=True)
class NormPairOp(BatchNormOp):
    """The same, whose residual is another batch's normalisation that nobody else reads: it is never stored.

    `residual` is the other one's source.
    """

    other_weight: View | None
    other_bias: View | None
    other_eps: float
    other_activation: Activation
    other_slope: float


@dataclass(frozen=True)
class GroupNormOp(ImageNormOp):
    """Normalisation of groups of an image's channels."""

    groups: int


@dataclass(frozen=True)
class RnnOp(LibraryOp):
    """All layers, directions and steps of a recurrent layer."""

    written = ("out", "last_hidden", "last_cell")

    weights: tuple[View, ...]
    """As torch orders them: for each layer and direction, input, hidden, and their biases.

    Elements of a row lie side by side; rows may be further apart than they are long where `one_bias`.
    """
    source: View
    hidden: View | None
    """The first state; None: zeros."""
    cell: View | None
    out: View
    last_hidden: View | None
    """Where the state after the last step goes; None: nobody wants it."""
    last_cell: View | None
    kind: Literal["lstm", "gru", "tanh", "relu"]
    steps: int
    batch: int
    features: int
    units: int
    layers: int
    directions: int
    batch_first: bool
    has_bias: bool
    one_bias: bool = False
    """Whether a layer has one bias in all."""


@dataclass(frozen=True)
class EmbeddingOp(LibraryOp):
    """The rows of a table that `index` names."""

    index: View
    table: View
    out: View
    wraps: bool = False
    """Whether -1 names the last row."""


@dataclass(frozen=True)
class EmbeddingBagOp(LibraryOp):
    """Sums or means of the rows of a table, for each bag of indices."""

    index: View
    offsets: View | None
    """Where each bag begins; None: all are equally long."""
    table: View
    out: View
    mean: bool
    padding: int | None
    """The row that counts for nothing."""


@dataclass(frozen=True)
class ScanOp(LibraryOp):
    """Running sums along the middle of [outer, length, inner]; of products where `product`."""

    source: View
    out: View
    outer: int
    length: int
    inner: int
    product: bool
    reads_back: bool = False
    """Whether it begins with the last element."""
    writes_back: bool = False
    """Whether the first sum is stored last."""
    exclusive: bool = False
    """Whether a sum leaves out the element at its own place."""


@dataclass(frozen=True)
class ExtremeOp(LibraryOp):
    """The largest (or smallest) elements along the middle of [outer, length, inner], and their places."""

    written = ("values", "places")

    source: View
    values: View | None
    """None: only the places are wanted."""
    places: View
    outer: int
    length: int
    inner: int
    largest: bool


@dataclass(frozen=True)
class ClassLossOp(LibraryOp):
    """The negative log-likelihood of class numbers."""

    scores: View
    """[rows, classes, ...], the classes of a row side by side."""
    target: View
    weight: View | None
    out: View
    from_logits: bool
    reduction: Literal["none", "mean", "sum"]
    ignore_index: int
    smoothing: float


@dataclass(frozen=True)
class AttentionOp(LibraryOp):
    """weights(q @ k^T * scale, masked) @ v; tensors are [batch, heads, positions, width], last stride 1."""

    q: View
    k: View
    v: View
    mask: View | None
    out: View
    mask_kind: Literal["none", "keep", "hide", "add"]
    scale: float
    causal: bool
    empty_is_zero: bool
    """Whether a query that may see no key gives zeros; else NaN."""
    weights: Literal["softmax", "relu"] = "softmax"
    hidden: float = -math.inf
    """What the score of a key becomes that the mask hides."""
    adds_hidden: bool = False
    """Whether `hidden` is added to the score, so that NaN stays NaN."""
    allow_tf32: bool = False
