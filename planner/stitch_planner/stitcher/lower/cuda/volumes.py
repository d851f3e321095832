"""Convolutions of volumes on GPUs: [N, C, D, H, W] on both sides."""

from collections.abc import Sequence

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.epilogue import epilogue_of, residual_of
from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.image_shapes import is_fp32
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import Triple, VolumeConvOp
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.lower.templates.conv import conv_numbers, folds, normalisation_of
from stitch_tools.models.graph import GraphNode

_OPS = frozenset(
    ["aten.conv3d.default", "aten.conv3d.padding", "aten.conv_transpose3d.input", "aten.convolution.default"]
)
_DIMS = 3
MOST_ELEMENTS = 2**31
"""Of a volume: the headers count them in 31 bits."""


class CudaVolumeConv(LibraryTemplate):
    """conv3d and conv_transpose3d, with a constant normalisation, a residual and a ReLU behind them."""

    family = "conv"

    def __init__(self, *, allow_tf32: bool) -> None:
        self.allow_tf32 = allow_tf32

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for batches of fp32 volumes and constant weights."""
        if node.op not in _OPS:
            return NOT_MINE
        source, weight = value_key(node.args[0]), value_key(node.args[1])
        if len(index.shape(weight)) != _DIMS + 2:
            return NOT_MINE
        if not is_fp32(node, index):
            return "convolutions are computed in float32 only"
        if len(index.shape(source)) != _DIMS + 2:
            return "only batched volumes have a template"
        bias = argument(node, 2, "bias")
        if not index.is_constant(weight) or (bias is not None and not index.is_constant(value_key(bias))):
            return "only constant weights have a template"
        if max(index.spec(source).numel, node.outputs[0].numel) >= MOST_ELEMENTS:
            return "volumes are counted in 31 bits"
        return None if conv_numbers(node, index.shape(weight)[2:]) else "uneven padding has no template"

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """A constant normalisation directly behind it, then one residual of its shape, then a ReLU."""
        own = value_key(candidate.args[0]) == (nodes[-1].name, 0)
        if candidate.op == "aten.batch_norm.default":
            return len(nodes) == 1 and own and folds(candidate, index)
        before = nodes[-1].op
        if before == "aten.relu.default" or candidate.outputs[0].dtype != "float32":
            return False
        if candidate.op == "aten.relu.default":
            return True
        residual = residual_of(candidate, {node.name for node in nodes}, index)
        return before != "aten.add.Tensor" and residual is not None

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        node, result = nodes[0], nodes[-1]
        norm = nodes[1] if len(nodes) > 1 and nodes[1].op == "aten.batch_norm.default" else None
        # The epilogue reads nodes behind its first; whatever comes before counts as that first one.
        epilogue = epilogue_of(nodes[1:] if norm else nodes, lowering)
        source = lowering.dense(value_key(node.args[0]))
        weight = lowering.dense(value_key(node.args[1]))
        numbers = conv_numbers(node, weight.shape[2:])
        assert numbers is not None
        kernel = _triple(numbers.kernel)
        channels = source.shape[1], node.outputs[0].shape[1]
        lowering.call(
            f"conv_{site(node)}",
            f"{site(node)}: {channels[0]} to {channels[1]} channels, "
            f"{' x '.join(map(str, kernel))}{', norm' if norm else ''}{epilogue.comment}",
            nodes,
            VolumeConvOp(
                weight=weight,
                bias=lowering.dense_or_none(argument(node, 2, "bias")),
                norm=None if norm is None else normalisation_of(norm, lowering),
                source=source,
                operands=tuple(lowering.dense(key) for key in epilogue.operands),
                out=lowering.new((result.name, 0)),
                post=epilogue.post,
                groups=numbers.groups,
                kernel=kernel,
                stride=_triple(numbers.stride),
                padding=_triple(numbers.padding),
                dilation=_triple(numbers.dilation),
                transposed=numbers.transposed,
                allow_tf32=self.allow_tf32,
            ),
        )


def _triple(values: tuple[int, ...]) -> Triple:
    depth, height, width = values
    return depth, height, width
