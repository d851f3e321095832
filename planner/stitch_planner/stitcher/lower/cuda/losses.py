"""Cross entropy on GPUs, from the kernel families that are there: one row kernel, and one for the mean."""

from collections.abc import Sequence
from math import prod
from typing import Literal

from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.kernel_ir import Access, Body, RowKernel, View
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.scalar_bodies import BodyBuilder
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import GraphNode

Reduction = Literal["none", "mean", "sum"]
_REDUCTIONS: tuple[Reduction, ...] = ("none", "mean", "sum")


class CudaCrossEntropy(LibraryTemplate):
    """cross_entropy of [rows, classes] against class numbers."""

    family = "loss"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for fp32 scores of two dims and int64 targets, without weights and smoothing."""
        if node.op != "aten.cross_entropy_loss.default":
            return NOT_MINE
        scores, target = (index.spec(value_key(item)) for item in node.args[:2])
        if scores.dtype != "float32" or target.dtype != "int64" or len(scores.shape) != 2:
            return "only float32 scores of two dims against class numbers have a loss template"
        if argument(node, 2, "weight") is not None or number(argument(node, 5, "label_smoothing", 0.0)) != 0:
            return "class weights and label smoothing have no template"
        return None if scores.numel else "a loss of nothing has no template"

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """The loss of each row, then their mean over the rows that count."""
        node = nodes[0]
        scores, targets = (lowering.view(value_key(item)) for item in node.args[:2])
        ignored = int(number(argument(node, 4, "ignore_index", -100)))
        kind = _REDUCTIONS[int(number(argument(node, 3, "reduction", 1)))]
        rows = scores.shape[0]
        losses = (
            lowering.new((node.name, 0))
            if kind == "none"
            else lowering.scratch(f"{node.name}_rows", (rows,), "float32")
        )
        lowering.add(_row_losses(lowering.unique(f"k_{node.name}"), node, scores, targets, losses, ignored))
        if kind != "none":
            total = lowering.new((node.name, 0))
            name = lowering.unique(f"k_{node.name}_{kind}")
            lowering.add(_total(name, node, losses, targets, total, ignored, kind))


def _row_losses(
    name: str, node: GraphNode, scores: View, targets: View, losses: View, ignored: int
) -> RowKernel:
    """log(sum(exp(x - max))) + max - x[target], 0 for ignored rows.

    The target's score is a sum in which all other classes count 0: one pass more over registers instead of a
    second, scattered read of memory.
    """
    rows, classes = scores.shape
    b = BodyBuilder()
    score = b.load(Access(scores.buffer, scores.strides, scores.offset))
    target = b.load(Access(targets.buffer, (targets.strides[0], 0), targets.offset))
    largest = b.reduce("max", score)
    total = b.reduce("sum", b.op("exp", (b.sub(score, largest),), "float32"))
    here = b.op("eq", (b.index(1), target), "bool")
    zero = b.const(0.0, "float32")
    chosen = b.reduce("sum", b.op("where", (here, score, zero), "float32"))
    loss = b.sub(b.add(b.op("log", (total,), "float32"), largest), chosen)
    counts = b.op("ne", (target, b.const(ignored, "int64")), "bool")
    result = b.op("where", (counts, loss, zero), "float32")
    return RowKernel(
        name,
        f"cross entropy of {rows} rows of {classes} classes ({node.module_path or node.name})",
        (node.name,),
        (rows,),
        (classes,),
        tuple(b.loads),
        Body(tuple(b.instrs), (result,)),
        (Access(losses.buffer, (losses.strides[0], 0), losses.offset),),
    )


def _total(
    name: str, node: GraphNode, losses: View, targets: View, total: View, ignored: int, kind: Reduction
) -> RowKernel:
    """The sum of the rows' losses, divided by the number of rows that count where the mean is asked for."""
    b = BodyBuilder()
    result = b.reduce("sum", b.load(Access(losses.buffer, (0, losses.strides[0]), losses.offset)))
    if kind == "mean":
        target = b.load(Access(targets.buffer, (0, targets.strides[0]), targets.offset))
        counts = b.op("ne", (target, b.const(ignored, "int64")), "bool")
        # A mean over no counted row divides 0 by 0: NaN, as torch's.
        result = b.div(result, b.reduce("sum", b.cast(counts, "float32")))
    return RowKernel(
        name,
        f"{kind} of {prod(losses.shape)} losses",
        (node.name,),
        (1,),
        losses.shape,
        tuple(b.loads),
        Body(tuple(b.instrs), (result,)),
        (Access(total.buffer, (0, 0), total.offset),),
    )
