"""Batch normalisation with batch statistics, with a residual and an activation behind it."""

from collections.abc import Sequence

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.epilogue import residual_of
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.image_shapes import is_fp32, last, own_activation, place, settle
from stitch_planner.stitcher.lower.kernel_ir import View
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import Activation, BatchNormOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import GraphNode


def absorbs_tail(nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
    """Whether `candidate` continues norm [+ residual] [activation]."""
    if own_activation(nodes[-1]) is not None:
        return False
    if own_activation(candidate) is not None:
        return candidate.outputs[0].dtype == "float32"
    return len(nodes) == 1 and residual_of(candidate, {nodes[0].name}, index) is not None


def tail_of(nodes: Sequence[GraphNode], index: GraphIndex) -> tuple[ValueKey | None, Activation, float]:
    """Residual, activation's name and slope of what follows a norm in its step."""
    residual: ValueKey | None = None
    name: Activation = "none"
    slope = 0.0
    for node in nodes[1:]:
        activation = own_activation(node)
        if activation is not None:
            name, slope = activation
        else:
            residual = residual_of(node, {nodes[0].name}, index)
    return residual, name, slope


def activation_text(activation: Activation) -> str:
    """The activation's name for a comment."""
    return "" if activation == "none" else f", {activation.replace('_', '')}"


class BatchNorm(LibraryTemplate):
    """batch_norm in training mode."""

    family = "batch_norm"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for fp32 images with statistics of their own."""
        if node.op != "aten.batch_norm.default" or not is_from_batch(node):
            return NOT_MINE
        if not is_fp32(node, index):
            return "batch statistics are computed in float32 only"
        shape = node.outputs[0].shape
        count = shape[0] * _area(shape) if len(shape) > 1 else 0
        return None if count > 1 else "batch statistics need more than one value for each channel"

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """A residual, then an activation."""
        return absorbs_tail(nodes, candidate, index)

    def source(self, key: ValueKey, lowering: Lowering) -> tuple[View, bool]:
        """The image as the call reads it, and whether it lies as N, C, H, W."""
        view = lowering.view(key)
        channels_first = view.is_dense and not view.is_channels_last
        return (view if channels_first else last(lowering, key)), channels_first

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call, in the order of memory that the operand has."""
        node = nodes[0]
        key = value_key(node.args[0])
        residual, activation, slope = tail_of(nodes, lowering.index)
        source, channels_first = self.source(key, lowering)
        shape = node.outputs[0].shape
        result = (nodes[-1].name, 0)
        target = place(lowering, result, first=channels_first)
        more = None if residual is None else _like(lowering, residual, channels_first)
        lowering.call(
            f"norm_{node.name}",
            f"{site(node)}: batch statistics of {shape[1]} channels"
            f"{', residual' if more else ''}{activation_text(activation)}",
            nodes,
            BatchNormOp(
                source=source,
                weight=lowering.dense_or_none(node.args[1]),
                bias=lowering.dense_or_none(node.args[2]),
                residual=more,
                out=target,
                channels_last=not channels_first,
                area=_area(shape),
                eps=float(number(argument(node, 7, "eps", 1e-5))),
                activation=activation,
                slope=slope,
            ),
        )
        settle(lowering, result, target)


def is_from_batch(node: GraphNode) -> bool:
    """Whether a batch_norm takes the statistics of its batch."""
    return argument(node, 5, "training") is True or node.args[3] is None


def _area(shape: tuple[int, ...]) -> int:
    area = 1
    for size in shape[2:]:
        area *= size
    return area


def _like(lowering: Lowering, key: ValueKey, channels_first: bool) -> View:
    return lowering.dense(key) if channels_first else last(lowering, key)
