"""Group normalisation of images, with a residual and an activation behind it."""

from collections.abc import Sequence

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.image_shapes import is_fp32, last, place, settle
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import GroupNormOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.lower.templates.batch_norm import absorbs_tail, activation_text, tail_of
from stitch_tools.models.graph import GraphNode


class GroupNorm(LibraryTemplate):
    """group_norm of [N, C, ...]."""

    family = "group_norm"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for fp32 images."""
        if node.op != "aten.group_norm.default" or len(node.outputs[0].shape) < 3:
            return NOT_MINE
        return None if is_fp32(node, index) else "group statistics are computed in float32 only"

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """A residual, then an activation."""
        return absorbs_tail(nodes, candidate, index)

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call, in the order of memory that the operand has."""
        node = nodes[0]
        key = value_key(node.args[0])
        view = lowering.view(key)
        residual, activation, slope = tail_of(nodes, lowering.index)
        first = view.is_dense and not view.is_channels_last
        shape = node.outputs[0].shape
        source = view if first else last(lowering, key)
        result = (nodes[-1].name, 0)
        target = place(lowering, result, first=first)
        more = None
        if residual is not None:
            more = lowering.dense(residual) if first else last(lowering, residual)
        area = node.outputs[0].numel // max(shape[0] * shape[1], 1)
        groups, eps = int(number(node.args[1])), float(number(argument(node, 4, "eps", 1e-5)))
        lowering.call(
            f"norm_{node.name}",
            f"{site(node)}: {groups} groups of {shape[1]} channels"
            f"{', residual' if more else ''}{activation_text(activation)}",
            nodes,
            GroupNormOp(
                source=source,
                weight=lowering.dense_or_none(argument(node, 2, "weight")),
                bias=lowering.dense_or_none(argument(node, 3, "bias")),
                residual=more,
                out=target,
                channels_last=not first,
                area=area,
                groups=groups,
                eps=eps,
                activation=activation,
                slope=slope,
            ),
        )
        settle(lowering, result, target)
