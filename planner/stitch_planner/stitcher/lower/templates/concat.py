"""Joining tensors along a dim: each operand is copied into its part of the result."""

from collections.abc import Sequence

from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.image_shapes import strided_copy
from stitch_planner.stitcher.lower.kernel_ir import channels_last
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.lower.views import slice_dim
from stitch_tools.models.graph import Argument, GraphNode

_OPS = frozenset(["aten.cat.default", "aten.concat.default", "aten.concatenate.default"])


def _keys(value: Argument) -> list[ValueKey]:
    assert isinstance(value, tuple)
    return [value_key(item) for item in value]


class Concat(LibraryTemplate):
    """cat."""

    family = "layout"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None where all operands have the result's type and rank."""
        if node.op not in _OPS:
            return NOT_MINE
        specs = [index.spec(key) for key in _keys(node.args[0])]
        result = node.outputs[0]
        same = all(s.dtype == result.dtype and len(s.shape) == len(result.shape) for s in specs)
        return None if same else "joining tensors of different types has no template"

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """A copy for each operand, in channels-last order where the operands that are images lie so."""
        node = nodes[0]
        views = [lowering.view(key) for key in _keys(node.args[0])]
        shape = node.outputs[0].shape
        dim = int(number(argument(node, 1, "dim", 0))) % len(shape)
        images = len(shape) == 4 and any(view.is_channels_last and not view.is_dense for view in views)
        target = lowering.new((node.name, 0), strides=channels_last(shape) if images else None)
        start = 0
        for view in views:
            part = slice_dim(target, dim, start, view.shape[dim])
            start += view.shape[dim]
            if view.dtype == "float32":
                strided_copy(lowering, view, part, node.name, (node.name,))
            elif view.numel:
                lowering.copy(view, part.strides, node.name, target=part)
