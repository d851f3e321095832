"""Running sums on GPUs: from behind, and without the element itself, in one call."""

from collections.abc import Sequence

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import ScanOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.rearrange import Flip
from stitch_planner.stitcher.lower.templates.scan import SCANS, Scan, split_at
from stitch_tools.models.graph import Argument, GraphNode

_FLIP = "aten.flip.default"
_JOINS = frozenset(["aten.cat.default", "aten.concat.default", "aten.concatenate.default"])
_ZEROS = frozenset(["aten.zeros_like.default", "aten.zeros.default", "aten.new_zeros.default"])


class CudaScan(Scan):
    """cumsum and cumprod, with the flip behind them, or a zero joined before them."""

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """The flip of the same dim; a join of a zero and a sum over all elements but the last."""
        dim = _dim(nodes[0], index)
        return len(nodes) == 1 and (
            _flips(candidate, dim) or _excluded(nodes[0], candidate, index) is not None
        )

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        if len(nodes) == 1:
            super().lower(nodes, lowering)
            return
        whole = _excluded(nodes[0], nodes[1], lowering.index)
        source = value_key(nodes[0].args[0]) if whole is None else whole
        _call(nodes, nodes[0], source, lowering, writes_back=whole is None, exclusive=whole is not None)


class CudaFlip(Flip):
    """flip, with the running sum of the same dim behind it and the flip behind that."""

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """A scan that walks along the dim that was turned, then a flip back."""
        if len(nodes) == 1:
            scans = Scan().refuses(candidate, index) is None
            return scans and _flips(nodes[0], _dim(candidate, index))
        return len(nodes) == 2 and _flips(candidate, _dim(nodes[1], index))

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One copy, or one call that reads from behind."""
        if len(nodes) == 1:
            super().lower(nodes, lowering)
            return
        source = value_key(nodes[0].args[0])
        _call(nodes, nodes[1], source, lowering, reads_back=True, writes_back=len(nodes) == 3)


def _call(
    nodes: Sequence[GraphNode],
    scan: GraphNode,
    key: ValueKey,
    lowering: Lowering,
    *,
    reads_back: bool = False,
    writes_back: bool = False,
    exclusive: bool = False,
) -> None:
    source = lowering.dense(key)
    target = lowering.new((nodes[-1].name, 0))
    outer, length, inner = split_at(source.shape, _dim(scan, lowering.index))
    ways = [("from behind", reads_back), ("written backwards", writes_back), ("without itself", exclusive)]
    extra = "".join(f", {text}" for text, taken in ways if taken)
    operation = ScanOp(
        source,
        target,
        outer,
        length,
        inner,
        product=SCANS[scan.op],
        reads_back=reads_back,
        writes_back=writes_back,
        exclusive=exclusive,
    )
    comment = f"{site(scan)}: {outer} x {inner} lines of {length}{extra}"
    lowering.call(f"scan_{scan.name}", comment, nodes, operation)


def _dim(scan: GraphNode, index: GraphIndex) -> int:
    """The dim that a scan walks along, counted from the front."""
    return int(number(argument(scan, 1, "dim"))) % max(1, len(index.shape(value_key(scan.args[0]))))


def _flips(node: GraphNode, dim: int) -> bool:
    """Whether the node turns this dim around and no other."""
    if node.op != _FLIP or not isinstance(node.args[1], tuple):
        return False
    rank = len(node.outputs[0].shape)
    return {int(number(item)) % max(1, rank) for item in node.args[1]} == {dim}


def _excluded(scan: GraphNode, join: GraphNode, index: GraphIndex) -> ValueKey | None:
    """What is summed up, where zeros stand before the sums over all elements but the last; else None."""
    dim, operands = _dim(scan, index), join.args[0]
    if join.op not in _JOINS or SCANS[scan.op] or not isinstance(operands, tuple) or len(operands) != 2:
        return None
    zeros = index.producer(value_key(operands[0]))
    along = int(number(argument(join, 1, "dim", 0))) % len(join.outputs[0].shape)
    if zeros is None or zeros.op not in _ZEROS or along != dim or value_key(operands[1]) != (scan.name, 0):
        return None
    narrow = index.producer(value_key(scan.args[0]))
    if narrow is None or not _drops_last(narrow, dim, index):
        return None
    whole = value_key(narrow.args[0])
    same = index.spec(whole).dtype == join.outputs[0].dtype and index.shape(whole) == join.outputs[0].shape
    return whole if same else None


def _drops_last(node: GraphNode, dim: int, index: GraphIndex) -> bool:
    """Whether the node is the window on all elements along the dim but the last."""
    if node.op not in ("aten.narrow.default", "aten.slice.Tensor"):
        return False
    shape = index.shape(value_key(node.args[0]))
    begin: Argument = argument(node, 2, "start", 0)
    starts = begin is None or number(begin) == 0
    expected = (*shape[:dim], shape[dim] - 1, *shape[dim + 1 :])
    step = argument(node, 4, "step", 1) if node.op == "aten.slice.Tensor" else 1
    return starts and number(step) == 1 and node.outputs[0].shape == expected
