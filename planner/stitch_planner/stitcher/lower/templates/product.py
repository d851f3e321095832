"""What a matrix product is on any target: its operands, and what has no template."""

from dataclasses import dataclass

from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.kernel_ir import View
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE
from stitch_planner.stitcher.lower.views import permute
from stitch_tools.models.graph import GraphNode

_LINEAR = "aten.linear.default"
_WITH_ADDEND = frozenset(["aten.addmm.default", "aten.baddbmm.default"])
_PLAIN = frozenset(f"aten.{name}.default" for name in ("mm", "matmul", "bmm", "__matmul__"))


@dataclass(frozen=True)
class Product:
    """Which operands a node multiplies: result = alpha * (a @ b) + bias."""

    a: ValueKey
    b: ValueKey
    bias: ValueKey | None
    """A vector with a value for each column, or of the result's shape."""
    b_transposed: bool
    """Whether b's value is [columns, depth], as the weight of a linear layer is."""
    alpha: float = 1.0


def product_of(node: GraphNode) -> Product | None:
    """The product that a node computes; None for other operations."""
    if node.op in _WITH_ADDEND:
        bias, a, b = (value_key(item) for item in node.args[:3])
        alpha, unused = float(number(node.kwargs.get("alpha", 1))), number(node.kwargs.get("beta", 1)) == 0
        return Product(a, b, None if unused else bias, False, alpha)
    if node.op != _LINEAR and node.op not in _PLAIN:
        return None
    given = argument(node, 2, "bias") if node.op == _LINEAR else None
    bias = None if given is None else value_key(given)
    return Product(value_key(node.args[0]), value_key(node.args[1]), bias, node.op == _LINEAR)


def refusal(node: GraphNode, index: GraphIndex) -> str | None:
    """None for float32 products, with or without a bias; else why there is no template."""
    product = product_of(node)
    if product is None:
        return NOT_MINE
    if any(index.spec(key).dtype != "float32" for key in index.operands(node)):
        return "matrix products are computed in float32 only"
    if number(node.kwargs.get("beta", 1)) not in (0, 1):
        return "a product with a scaled addend has no template"
    if index.shape(product.a)[-1] == 0:
        return "a product over nothing has no template"
    shape = node.outputs[0].shape
    fits = product.bias is None or index.shape(product.bias) in (shape, shape[-1:])
    return None if fits else "only a bias vector, or an addend of the result's shape, has a template"


def matrices(product: Product, lowering: Lowering) -> tuple[View, View]:
    """Both sides as [..., rows, depth] and [..., depth, columns]; vectors become matrices."""
    a, b = lowering.view(product.a), lowering.view(product.b)
    if product.b_transposed:
        b = permute(b, (1, 0))
    if len(a.shape) == 1:
        a = View(a.buffer, (1, *a.shape), (0, *a.strides), a.offset)
    if len(b.shape) == 1:
        b = View(b.buffer, (*b.shape, 1), (*b.strides, 1), b.offset)
    return a, b
