"""Convolutions through oneDNN in channels-last order, with norm, activation and residual taken in."""

from collections.abc import Sequence
from dataclasses import dataclass

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.epilogue import can_follow, epilogue_of
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.image_shapes import as_2d, is_fp32, last, place, settle
from stitch_planner.stitcher.lower.kernel_ir import View
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import ConvOp, Normalisation
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import Argument, GraphNode

CONV_OPS = frozenset(
    f"aten.{name}"
    for name in (
        "conv1d.default",
        "conv1d.padding",
        "conv2d.default",
        "conv2d.padding",
        "conv_transpose1d.default",
        "conv_transpose2d.input",
        "convolution.default",
    )
)


@dataclass(frozen=True)
class ConvShape:
    """The numbers of a convolution. Pairs are height, width; a 1-d convolution has height 1."""

    groups: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    transposed: bool
    output_padding: tuple[int, int] = (0, 0)


def conv_shape(node: GraphNode, index: GraphIndex) -> ConvShape | None:
    """The convolution's numbers; None where its padding cannot be given as one number a side."""
    weight = index.shape(value_key(node.args[1]))
    # A 1-d convolution is a 2-d one of height 1, so there is one template for both.
    numbers = conv_numbers(node, weight[2:])
    if numbers is None:
        return None
    return ConvShape(
        numbers.groups,
        _pair(numbers.kernel, 1),
        _pair(numbers.stride, 1),
        _pair(numbers.padding, 0),
        _pair(numbers.dilation, 1),
        numbers.transposed,
        _pair(numbers.output_padding, 0),
    )


def _pair(values: tuple[int, ...], default: int) -> tuple[int, int]:
    """Height and width; `default` for the height that is not there."""
    return (values[0], values[1]) if len(values) == 2 else (default, values[0])


@dataclass(frozen=True)
class ConvNumbers:
    """The numbers of a convolution along any number of dims, one for each of them."""

    groups: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]


def conv_numbers(node: GraphNode, kernel: tuple[int, ...]) -> ConvNumbers | None:
    """The numbers of a convolution with such a window; None where its padding has no one number a side."""
    dims = len(kernel)
    stride = _spread(argument(node, 3, "stride", 1), dims)
    # The overloads order their arguments differently: groups and output_padding come before dilation here.
    if node.op.startswith("aten.conv_transpose"):
        return ConvNumbers(
            int(number(argument(node, 6, "groups", 1))),
            kernel,
            stride,
            _spread(argument(node, 4, "padding", 0), dims),
            _spread(argument(node, 7, "dilation", 1), dims),
            True,
            _spread(argument(node, 5, "output_padding", 0), dims),
        )
    dilation = _spread(argument(node, 5, "dilation", 1), dims)
    padding = _padding(argument(node, 4, "padding", 0), kernel, dilation)
    if padding is None:
        return None
    general = node.op == "aten.convolution.default"
    return ConvNumbers(
        int(number(argument(node, 8 if general else 6, "groups", 1))),
        kernel,
        stride,
        padding,
        dilation,
        general and argument(node, 6, "transposed") is True,
        _spread(argument(node, 7, "output_padding", 0), dims) if general else (0,) * dims,
    )


def _padding(given: Argument, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...] | None:
    if given == "valid":
        return (0,) * len(kernel)
    if given == "same":
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        # "same" pads the two sides unequally where the reach is odd, which one number a side cannot say.
        return None if any(r % 2 for r in reach) else tuple(r // 2 for r in reach)
    return _spread(given, len(kernel))


def _spread(value: Argument, dims: int) -> tuple[int, ...]:
    """One number or one for each dim, as one for each dim."""
    given = value if isinstance(value, tuple) else (value,)
    numbers = tuple(int(number(item)) for item in given)
    return numbers * dims if len(numbers) == 1 else numbers


def folds(norm: GraphNode, index: GraphIndex) -> bool:
    """Whether a normalisation is a constant scale and offset for each channel."""
    # In training the statistics are those of the batch, which are not known when weights are packed.
    if norm.op != "aten.batch_norm.default" or argument(norm, 5, "training") is not False:
        return False
    statistics = norm.args[1:5]
    return statistics[2] is not None and all(s is None or index.is_constant(value_key(s)) for s in statistics)


class Conv(LibraryTemplate):
    """conv1d, conv2d and their transposes."""

    family = "conv"
    allow_tf32 = False
    """Whether products may be rounded to TF32; a CPU has no use for it."""

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for fp32 convolutions with constant weights."""
        if node.op not in CONV_OPS:
            return NOT_MINE
        if not is_fp32(node, index):
            return "convolutions are computed in float32 only"
        data, weight = index.shape(value_key(node.args[0])), value_key(node.args[1])
        bias = argument(node, 2, "bias")
        if len(data) not in (3, 4) or len(data) != len(index.shape(weight)):
            return "only batched one- and two-dimensional convolutions have a template"
        if not index.is_constant(weight) or (bias is not None and not index.is_constant(value_key(bias))):
            return "only constant weights have a template"
        return None if conv_shape(node, index) is not None else "uneven padding has no template"

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """A constant normalisation behind it, then what oneDNN's epilogue has."""
        if candidate.op == "aten.batch_norm.default":
            own = value_key(candidate.args[0]) == (nodes[-1].name, 0)
            # Only directly behind the convolution: it is multiplied into the weights, before any post-op.
            return len(nodes) == 1 and own and folds(candidate, index)
        return can_follow(nodes, candidate, index)

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        node = nodes[0]
        norm = nodes[1] if len(nodes) > 1 and nodes[1].op == "aten.batch_norm.default" else None
        tail = nodes[2:] if norm else nodes[1:]
        shape = conv_shape(node, lowering.index)
        assert shape is not None
        planar = self.is_planar(node, lowering)
        source = self.source(value_key(node.args[0]), shape, lowering, planar=planar)
        # The epilogue reads nodes behind its first; whatever comes before counts as that first one.
        epilogue = epilogue_of((nodes[1] if norm else node, *tail), lowering)
        operands = tuple(
            self.source(key, shape, lowering, planar=True) if planar else self.operand(key, lowering)
            for key in epilogue.operands
        )
        result = nodes[-1]
        target = self.target((result.name, 0), lowering, planar=planar)
        bias = argument(node, 2, "bias")
        channels = source.shape[1], target.shape[1]
        lowering.call(
            f"conv_{site(node)}",
            f"{site(node)}: {channels[0]} to {channels[1]} channels, "
            f"{shape.kernel[0]} x {shape.kernel[1]}{', norm' if norm else ''}{epilogue.comment}",
            nodes,
            ConvOp(
                weight=lowering.dense(value_key(node.args[1])),
                bias=lowering.dense_or_none(bias),
                norm=None if norm is None else normalisation_of(norm, lowering),
                source=source,
                out=as_2d(target),
                operands=operands,
                post=epilogue.post,
                channels=channels,
                groups=shape.groups,
                kernel=shape.kernel,
                stride=shape.stride,
                padding=shape.padding,
                dilation=shape.dilation,
                transposed=shape.transposed,
                output_padding=shape.output_padding,
                allow_tf32=self.allow_tf32,
                planar=planar,
            ),
        )
        settle(lowering, (result.name, 0), target)

    def is_planar(self, node: GraphNode, lowering: Lowering) -> bool:
        """Whether images lie as N, C, H, W on both sides."""
        return False

    def source(self, key: ValueKey, shape: ConvShape, lowering: Lowering, *, planar: bool) -> View:
        """The image as the call reads it."""
        return self.operand(key, lowering)

    def target(self, key: ValueKey, lowering: Lowering, *, planar: bool) -> View:
        """Where the call writes; `settle` moves it if the value belongs elsewhere."""
        return place(lowering, key)

    def operand(self, key: ValueKey, lowering: Lowering) -> View:
        """A value in channels-last order."""
        return as_2d(last(lowering, key))


def normalisation_of(norm: GraphNode, lowering: Lowering) -> Normalisation:
    """What of a normalisation is multiplied into the weights."""
    gamma, beta, mean, variance = (lowering.dense_or_none(key) for key in norm.args[1:5])
    return Normalisation(gamma, beta, mean, variance, float(number(argument(norm, 7, "eps"))))
