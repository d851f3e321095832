"""Cross entropy and negative log-likelihood of class scores."""

from collections.abc import Sequence
from typing import Literal

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.image_shapes import last
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import ClassLossOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import GraphNode

_OPS = {
    "aten.cross_entropy_loss.default": True,
    "aten.nll_loss.default": False,
    "aten.nll_loss_nd.default": False,
}
"""Whether the operation starts from logits."""
_REDUCTIONS: tuple[Literal["none", "mean", "sum"], ...] = ("none", "mean", "sum")


class ClassLoss(LibraryTemplate):
    """Losses against class numbers."""

    family = "loss"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for fp32 scores of shape [N, C, ...] and int64 targets."""
        if node.op not in _OPS:
            return NOT_MINE
        scores, target = (index.spec(value_key(item)) for item in node.args[:2])
        if scores.dtype != "float32" or target.dtype != "int64":
            return "only class numbers as targets and float32 scores have a loss template"
        return None if len(scores.shape) >= 2 else "a loss of one row has no template"

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call over rows of classes."""
        node = nodes[0]
        scores = last(lowering, value_key(node.args[0]))  # the classes of a row side by side
        target = lowering.dense(value_key(node.args[1]))
        kind = _REDUCTIONS[int(number(argument(node, 3, "reduction", 1)))]
        lowering.call(
            f"loss_{node.name}",
            f"{site(node)}: {target.numel} rows of {scores.shape[1]} classes",
            (node,),
            ClassLossOp(
                scores=scores,
                target=target,
                weight=lowering.dense_or_none(argument(node, 2, "weight")),
                out=lowering.new((node.name, 0)),
                from_logits=_OPS[node.op],
                reduction=kind,
                ignore_index=int(number(argument(node, 4, "ignore_index", -100))),
                smoothing=float(number(argument(node, 5, "label_smoothing", 0.0))),
            ),
        )
