"""Matrix products on GPUs: one cuBLASLt call each, with bias and residual in its epilogue."""

from collections.abc import Sequence
from math import prod

from stitch_planner.stitcher.lower.comments import followers, site
from stitch_planner.stitcher.lower.epilogue import residual_of
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey
from stitch_planner.stitcher.lower.kernel_ir import LibraryCall, View, row_major
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import MatmulOp, MatrixLayout
from stitch_planner.stitcher.lower.templates.base import LibraryTemplate
from stitch_planner.stitcher.lower.templates.product import Product, matrices, product_of, refusal
from stitch_planner.stitcher.lower.views import collapse, expand, reshape
from stitch_tools.models.graph import GraphNode

RELU = "aten.relu.default"
ALIGNED_ELEMENTS = 4
"""float32 elements in the 16 bytes that cuBLASLt is promised for every operand."""


FEWEST_SPLIT_PRODUCTS = 1 << 26
"""Multiplications from which on a product on tensor cores gains more than a second kernel costs."""
SHORTEST_SPLIT_SIDE = 32
"""Rows or columns below which most of a tile of 128 is not used."""
SHORTEST_SPLIT_DEPTH = 64
"""Products to a sum below which float32 rounds so seldom that two halves a number are less exact."""


class CudaProduct(LibraryTemplate):
    """linear, matmul and their relatives."""

    family = "gemm"

    def __init__(self, *, allow_tf32: bool = False) -> None:
        self.allow_tf32 = allow_tf32

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for products of fp32 tensors."""
        if node.op == "aten.baddbmm.default":
            return "a batched product with an addend has no template"
        if any(index.spec(key).numel == 0 for key in index.operands(node)):
            return refusal(node, index) or "a product of nothing has no template"
        general = refusal(node, index)
        return _refusal_here(node, index) if general is None else general

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """One residual of the result's shape; a ReLU only where the program's own kernel keeps its NaN."""
        if nodes[-1].op == RELU:
            return False
        if candidate.op == RELU:
            return not self.allow_tf32 and _may_split(nodes[0], index)
        if candidate.outputs[0].dtype != "float32" or candidate.outputs[0].shape != nodes[0].outputs[0].shape:
            return False
        product = product_of(nodes[0])
        if product is not None and product.bias is not None and not _is_vector(product.bias, index):
            return False  # such a bias is the addend
        return len(nodes) == 1 and residual_of(candidate, {node.name for node in nodes}, index) is not None

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One library call."""
        first, inside = nodes[0], {node.name for node in nodes}
        product = product_of(first)
        assert product is not None
        has_relu = nodes[-1].op == RELU
        added = nodes[1:-1] if has_relu else nodes[1:]
        residuals = [residual_of(node, inside, lowering.index) for node in added]
        residual = next((key for key in residuals if key is not None), None)
        bias = None if product.bias is None else lowering.view(product.bias)
        addend = None if residual is None else lowering.view(residual)
        # cuBLASLt's epilogue adds a vector that it reads itself. Any other bias is added as C, with beta = 1.
        if bias is not None and not _is_in_epilogue(bias):
            assert addend is None, "`absorbs` takes no residual beside such a bias"
            bias, addend = None, bias
        if addend is not None:
            addend = _whole(addend, first.outputs[0].shape, first, lowering)
        a, b = _operands(product, first, lowering)
        lowering.add(
            product_call(
                lowering.unique(f"product_{site(first)}"),
                site(first),
                nodes,
                a,
                b,
                lowering.new((nodes[-1].name, 0)),
                bias=bias,
                addend=addend,
                relu=has_relu,
                allow_tf32=self.allow_tf32,
            )
        )


def _refusal_here(node: GraphNode, index: GraphIndex) -> str | None:
    """Why a product that a CPU's library takes has no template here; None where it has one."""
    product = product_of(node)
    assert product is not None
    return None if product.alpha == 1 else "addmm with scaling factors has no template"


def _is_vector(bias: ValueKey, index: GraphIndex) -> bool:
    """Whether the bias is a parameter of its own, which the library adds in its epilogue."""
    return index.is_constant(bias) and len(index.shape(bias)) == 1


def _is_in_epilogue(bias: View) -> bool:
    """Whether the library can add the bias in its epilogue: it keeps the address of a dense vector."""
    is_vector = bias.buffer.role == "param" and len(bias.shape) == 1 and bias.is_dense
    return is_vector and bias.offset % ALIGNED_ELEMENTS == 0


def _whole(addend: View, shape: tuple[int, ...], node: GraphNode, lowering: Lowering) -> View:
    """The addend with an element for each of the result's, as the library reads it; copied if need be."""
    spread = expand(addend, shape)
    fits = spread.is_dense and spread.offset % ALIGNED_ELEMENTS == 0
    return spread if fits else lowering.copy(spread, row_major(shape), node.name)


def product_call(
    name: str,
    what: str,
    nodes: Sequence[GraphNode],
    a: View,
    b: View,
    target: View,
    *,
    bias: View | None = None,
    addend: View | None = None,
    relu: bool = False,
    allow_tf32: bool = False,
) -> LibraryCall:
    """The call that computes a @ b + bias + addend, or its ReLU, into the dense `target`.

    Operands are [rows, columns] or [batch, rows, columns], readable by the library (see `as_batch`).
    """
    m, k, n = *a.shape[-2:], b.shape[-1]
    batch = a.shape[0] if len(a.shape) > 2 else 1
    first, second = _layout(a), _layout(b)
    assert first is not None
    assert second is not None
    times = f"{batch} x " if batch > 1 else ""
    return LibraryCall(
        name,
        f"{what}: {times}[{m}, {k}] x [{k}, {n}]{followers(nodes)}",
        tuple(node.name for node in nodes),
        MatmulOp(
            bias=bias,
            a=a,
            b=b,
            out=target,
            addend=addend,
            layouts=(first, second, MatrixLayout(False, n, m * n if batch > 1 else 0)),
            allow_tf32=allow_tf32,
            relu=relu,
            may_split=not allow_tf32 and _is_worth_a_split(batch, m, n, k),
        ),
    )


def _may_split(node: GraphNode, index: GraphIndex) -> bool:
    """Whether a node's product is large enough to be split."""
    product, shape = product_of(node), node.outputs[0].shape
    if product is None or len(shape) < 2:
        return False
    is_batch = len(index.shape(product.b)) > 2
    rows = shape[-2] if is_batch else prod(shape[:-1])
    batch = prod(shape[:-2]) if is_batch else 1
    return _is_worth_a_split(batch, rows, shape[-1], index.shape(product.a)[-1])


def _is_worth_a_split(batch: int, m: int, n: int, k: int) -> bool:
    """Whether the program measures split operands (split_product.cuh) for these sizes."""
    is_large = batch * m * n * k >= FEWEST_SPLIT_PRODUCTS
    return is_large and min(m, n) >= SHORTEST_SPLIT_SIDE and k >= SHORTEST_SPLIT_DEPTH


def _operands(product: Product, node: GraphNode, lowering: Lowering) -> tuple[View, View]:
    """Both sides as the library reads them: one batch dim or none, and one contiguous side."""
    a, b = matrices(product, lowering)
    if len(b.shape) > 2:
        batch = _broadcast(a.shape[:-2], b.shape[:-2])
        return as_batch(a, batch, node, lowering), as_batch(b, batch, node, lowering)
    rows = (prod(a.shape[:-1]), a.shape[-1])
    flat = reshape(a, rows)
    if flat is None:
        flat = reshape(lowering.copy(a, row_major(a.shape), node.name), rows)
    assert flat is not None
    return _readable(flat, node, lowering), _readable(b, node, lowering)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    width = max(len(a), len(b))
    pairs = zip((1,) * (width - len(a)) + a, (1,) * (width - len(b)) + b, strict=True)
    return tuple(max(pair) for pair in pairs)


def as_batch(view: View, batch: tuple[int, ...], node: GraphNode, lowering: Lowering) -> View:
    """The operand as [batch, rows, columns] with one stride over the batch; copied where it has none."""
    spread = expand(view, (*batch, *view.shape[-2:]))
    sizes, (strides,) = collapse(batch, [spread.strides[:-2]])
    # The library knows one stride over the batch.
    if len(sizes) > 1 or _layout(spread) is None:
        spread = lowering.copy(spread, row_major(spread.shape), node.name)
        sizes, (strides,) = collapse(batch, [spread.strides[:-2]])
    shape = (prod(batch), *spread.shape[-2:])
    return View(spread.buffer, shape, (strides[0], *spread.strides[-2:]), spread.offset)


def _readable(view: View, node: GraphNode, lowering: Lowering) -> View:
    return view if _layout(view) else lowering.copy(view, row_major(view.shape), node.name)


def _layout(view: View) -> MatrixLayout | None:
    """How the library reads the matrices: rows or columns without gaps, aligned at their begin; else None."""
    (rows, columns), (down, across) = view.shape[-2:], view.strides[-2:]
    batch_stride = view.strides[0] if len(view.shape) > 2 else 0
    # The alignment is promised to the library when it chooses its kernel; breaking it would be undefined.
    if view.offset % ALIGNED_ELEMENTS:
        return None
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return MatrixLayout(False, max(down, columns) if rows > 1 else columns, batch_stride)
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return MatrixLayout(True, max(across, rows) if columns > 1 else rows, batch_stride)
    return None
