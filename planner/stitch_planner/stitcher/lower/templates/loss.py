"""Cross entropy and negative log-likelihood of class scores."""

from collections.abc import Sequence

from stitch_planner.stitcher.emit.call_text import flag, optional, site
from stitch_planner.stitcher.graph.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.image_shapes import last
from stitch_planner.stitcher.lower.kernel_ir import LibraryCall, Pointer
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import GraphNode

_OPS = {
    "aten.cross_entropy_loss.default": True,
    "aten.nll_loss.default": False,
    "aten.nll_loss_nd.default": False,
}
"""Whether the operation starts from logits."""
_REDUCTIONS = ("kNone", "kMean", "kSum")


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
        options = (
            f"{{.rows = {target.numel}, .classes = {scores.shape[1]}, "
            f".ignore_index = {int(number(argument(node, 4, 'ignore_index', -100)))}, "
            f".smoothing = {float(number(argument(node, 5, 'label_smoothing', 0.0)))!r}f}}"
        )
        lowering.add(
            LibraryCall(
                lowering.unique(f"loss_{node.name}"),
                f"{site(node)}: {target.numel} rows of {scores.shape[1]} classes",
                (node.name,),
                "stitch/cpu/loss.h",
                f"stitch::cpu::ClassLoss<{flag(_OPS[node.op])}, stitch::cpu::Reduction::{kind}>",
                (options,),
                (
                    Pointer(scores),
                    Pointer(target),
                    optional(argument(node, 2, "weight"), lowering),
                    Pointer(lowering.new((node.name, 0)), write=True),
                    "threads",
                ),
                chosen="log-sum-exp and target's score of a row in one go",
            )
        )
