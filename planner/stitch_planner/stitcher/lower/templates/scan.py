"""Along one dim: running sums and products, and the places of largest and smallest elements."""

from collections.abc import Sequence
from math import prod

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import ExtremeOp, ScanOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import GraphNode

SCANS = {"aten.cumsum.default": False, "aten.cumprod.default": True}
"""Whether it is a product."""
_PLACES = {"aten.argmax.default": True, "aten.argmin.default": False}
"""Whether the largest is looked for; so below."""
_EXTREMES = {"aten.max.dim": True, "aten.min.dim": False}
_TYPES = ("float32", "float64", "int32", "int64")


class Scan(LibraryTemplate):
    """cumsum and cumprod."""

    family = "scan"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for numbers that keep their type."""
        if node.op not in SCANS:
            return NOT_MINE
        dtype = index.spec(value_key(node.args[0])).dtype
        fits = dtype in _TYPES and node.outputs[0].dtype == dtype
        return None if fits else "running sums into another type have no template"

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        node = nodes[0]
        source = lowering.dense(value_key(node.args[0]))
        target = lowering.new((node.name, 0))
        outer, length, inner = split_at(source.shape, int(number(node.args[1])))
        lowering.call(
            f"scan_{node.name}",
            f"{site(node)}: {outer} x {inner} lines of {length}",
            (node,),
            ScanOp(source, target, outer, length, inner, product=SCANS[node.op]),
        )


class Extreme(LibraryTemplate):
    """argmax and argmin; max and min over a dim with the places asked for.

    Without them they are reductions, see `simplify`.
    """

    family = "extreme"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for numbers."""
        if node.op not in _PLACES and node.op not in _EXTREMES:
            return NOT_MINE
        dtype = index.spec(value_key(node.args[0])).dtype
        return None if dtype in _TYPES else f"places of extremes in {dtype} have no template"

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        node = nodes[0]
        source = lowering.dense(value_key(node.args[0]))
        values = lowering.new((node.name, 0)) if node.op in _EXTREMES else None
        places = lowering.new((node.name, 1 if node.op in _EXTREMES else 0))
        dim = argument(node, 1, "dim")
        # Without a dim argmax looks at all elements in a row.
        shape, at = (source.shape, int(number(dim))) if dim is not None else ((prod(source.shape),), 0)
        outer, length, inner = split_at(shape, at)
        largest = {**_PLACES, **_EXTREMES}[node.op]
        lowering.call(
            f"extreme_{node.name}",
            f"{site(node)}: {outer} x {inner} lines of {length}",
            (node,),
            ExtremeOp(source, values, places, outer, length, inner, largest=largest),
        )


def split_at(shape: tuple[int, ...], dim: int) -> tuple[int, int, int]:
    """Elements before, along and behind a dim."""
    if not shape:
        return 1, 1, 1
    at = dim % len(shape)
    return prod(shape[:at]), shape[at], prod(shape[at + 1 :])
