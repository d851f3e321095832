"""Products by einsum, and rows chosen by an index, on GPUs."""

from collections.abc import Sequence
from math import prod

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.cuda.products import as_batch, product_call
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, value_key
from stitch_planner.stitcher.lower.kernel_ir import View
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import EmbeddingOp
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.lower.templates.einsum import Einsum
from stitch_planner.stitcher.lower.views import reshape
from stitch_tools.models.graph import Argument, GraphNode, ValueRef


class CudaEinsum(Einsum):
    """einsum that multiplies two matrices, or batches of them."""

    def __init__(self, *, allow_tf32: bool = False) -> None:
        self.allow_tf32 = allow_tf32

    def multiply(
        self,
        nodes: Sequence[GraphNode],
        a: tuple[View, ValueKey],
        b: tuple[View, ValueKey],
        target: View,
        lowering: Lowering,
    ) -> None:
        """One library call."""
        node = nodes[0]
        batch = target.shape[:-2]
        left, right = (as_batch(view, batch, node, lowering) for view, _ in (a, b))
        name = lowering.unique(f"product_{site(node)}")
        lowering.add(product_call(name, site(node), nodes, left, right, target, allow_tf32=self.allow_tf32))


class CudaRowIndex(LibraryTemplate):
    """table[index], by one tensor of whole numbers along the first dim."""

    family = "embedding"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for float32 tables."""
        if node.op != "aten.index.Tensor":
            return NOT_MINE
        which = _only_index(node.args[1])
        if which is None:
            return "only an index along the first dim has a template"
        table, by = index.spec(value_key(node.args[0])).dtype, index.spec(value_key(which)).dtype
        fits = table == "float32" and by in ("int64", "int32")
        return None if fits else f"no rows of {table} by {by}"

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        node = nodes[0]
        which = _only_index(node.args[1])
        assert which is not None
        table, by = lowering.dense(value_key(node.args[0])), lowering.dense(value_key(which))
        rows = reshape(table, (table.shape[0], prod(table.shape[1:])))
        assert rows is not None, "dense"
        lowering.call(
            f"rows_{node.name}",
            f"{site(node)}: {by.numel} rows of {rows.shape[1]}",
            (node,),
            EmbeddingOp(by, rows, lowering.new((node.name, 0)), wraps=True),
        )


def _only_index(value: Argument) -> ValueRef | None:
    """The index of the first dim, where it is the only one."""
    given = value if isinstance(value, tuple) else (value,)
    first = given[0] if given else None
    return first if isinstance(first, ValueRef) and all(one is None for one in given[1:]) else None
