"""Products of a matrix and a vector on GPUs: reductions of long rows, bound by reading the matrix once."""

from collections.abc import Sequence

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.cuda.chunks import split_over_blocks
from stitch_planner.stitcher.lower.graph_index import GraphIndex
from stitch_planner.stitcher.lower.kernel_ir import Access, Body, RowKernel
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.scalar_bodies import BodyBuilder
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.lower.templates.product import matrices, product_of, refusal
from stitch_planner.stitcher.lower.views import reshape
from stitch_tools.models.graph import GraphNode

FEWEST_ELEMENTS = 1 << 20
"""Of the matrix: below it, the library's call is as fast."""
SHORTEST_ROW = 256


class MatrixVector(LibraryTemplate):
    """matmul and its relatives where the second operand is one long column."""

    family = "gemm"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for a matrix of long rows times a vector, without a bias."""
        product = product_of(node)
        if product is None or product.bias is not None or product.alpha != 1 or product.b_transposed:
            return NOT_MINE
        a, b = index.shape(product.a), index.shape(product.b)
        columns = b[1] if len(b) == 2 else 1
        large = index.spec(product.a).numel >= FEWEST_ELEMENTS and len(b) <= 2
        if len(a) < 2 or columns != 1 or not large or a[-1] < SHORTEST_ROW:
            return NOT_MINE
        return refusal(node, index)

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """Sums of products, cut into chunks where rows are few."""
        node = nodes[0]
        product = product_of(node)
        assert product is not None
        a, b = matrices(product, lowering)
        depth = a.shape[-1]
        shape = (a.numel // depth, depth)
        flat = reshape(a, shape) if a.strides[-1] == 1 else None
        if flat is None:
            flat = reshape(lowering.dense(product.a), shape)
        assert flat is not None
        target = lowering.new((node.name, 0))
        builder = BodyBuilder()
        left = builder.load(Access(flat.buffer, flat.strides, flat.offset))
        right = builder.load(Access(b.buffer, (0, b.strides[0]), b.offset))
        result = builder.reduce("sum", builder.mul(left, right))
        name = lowering.unique(f"k_{node.name}")
        kernel = RowKernel(
            name,
            f"{site(node)}: [{shape[0]}, {depth}] x vector",
            (node.name,),
            shape[:1],
            shape[1:],
            tuple(builder.loads),
            Body(tuple(builder.instrs), (result,)),
            (Access(target.buffer, (1, 0), target.offset),),
        )
        for part in split_over_blocks(
            kernel, lambda count, dtype: lowering.scratch(f"{name}_partial", (count,), dtype)
        ):
            lowering.add(part)
