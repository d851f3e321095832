"""Matrix products on GPUs: one cuBLASLt call each, with bias, residual and ReLU in its epilogue."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stitch_planner.stitcher.index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.ir import Argument, LibraryCall, Pointer, View, row_major
from stitch_planner.stitcher.lowering import Lowering
from stitch_planner.stitcher.scalars import number
from stitch_planner.stitcher.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.views import collapse, expand, permute, reshape
from stitch_tools.models.graph import GraphNode, ValueRef

_OPS = frozenset(f"aten.{name}.default" for name in ("linear", "addmm", "mm", "matmul", "bmm", "__matmul__"))
ALIGNED_ELEMENTS = 4
"""float32 elements in the 16 bytes that cuBLASLt is promised for every operand."""


@dataclass(frozen=True)
class Stored:
    """A batch of matrices as stitch::cuda::MatrixLayout describes it."""

    view: View
    """First element: the buffer and the offset count."""
    transposed: bool
    ld: int
    batch_stride: int = 0

    @property
    def text(self) -> str:
        """Braced C++ text."""
        return f"{{{_flag(self.transposed)}, {self.ld}, {self.batch_stride}}}"


@dataclass(frozen=True)
class Product:
    """Operands, sizes and layouts of one call."""

    a: Stored
    b: Stored
    d: Stored
    batch: int
    m: int
    n: int
    k: int


class CudaProduct(LibraryTemplate):
    """linear, matmul and their relatives."""

    family = "gemm"

    def __init__(self, *, allow_tf32: bool = False) -> None:
        self.allow_tf32 = allow_tf32

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for products of fp32 tensors."""
        if node.op not in _OPS:
            return NOT_MINE
        if any(index.spec(key).dtype != "float32" for key in index.operands(node)):
            return "matrix products are computed in float32 only"
        if any(number(node.kwargs.get(name, 1)) != 1 for name in ("beta", "alpha")):
            return "addmm with scaling factors has no template"
        if any(index.spec(key).numel == 0 for key in index.operands(node)):
            return "a product of nothing has no template"
        bias = bias_of(node)
        if bias is not None and index.shape(bias) != node.outputs[0].shape[-1:]:
            return "only a bias vector has a template"
        return None if bias is None or index.is_constant(bias) else "only a bias of parameters has a template"

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """One residual of the result's shape, then one ReLU; its GELU is another function than torch's."""
        done = [node.op for node in nodes[1:]]
        if candidate.outputs[0].dtype != "float32" or candidate.outputs[0].shape != nodes[0].outputs[0].shape:
            return False
        if candidate.op == "aten.relu.default":
            return candidate.op not in done
        return not done and residual_of(candidate, {node.name for node in nodes}, index) is not None

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One library call."""
        first, inside = nodes[0], {node.name for node in nodes}
        bias = bias_of(first)
        residuals = [residual_of(node, inside, lowering.index) for node in nodes[1:]]
        residual = next((key for key in residuals if key is not None), None)
        addend = None if residual is None else lowering.dense(residual)
        a, b = _operands(first, lowering)
        lowering.add(
            product_call(
                lowering.unique(f"product_{first.name}"),
                first.module_path or first.op.split(".")[1],
                nodes,
                a,
                b,
                lowering.new((nodes[-1].name, 0)),
                bias=None if bias is None else lowering.view(bias),
                addend=addend,
                relu=any(node.op == "aten.relu.default" for node in nodes),
                allow_tf32=self.allow_tf32,
            )
        )


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
    """The call that computes act(a @ b + bias + addend) into the dense `target`.

    Operands are [rows, columns] or [batch, rows, columns], readable by the library (see `as_batch`).
    """
    product = _product((a, b), target)
    sizes = (product.m, product.n, product.k, product.batch)
    layouts = (product.a.text, product.b.text, product.d.text)
    activation = f"stitch::cuda::Activation::{'kRelu' if relu else 'kNone'}"
    flags = (_flag(bias is not None), _flag(addend is not None), activation, _flag(allow_tf32))
    init: list[Argument] = ["lib", "{" + ", ".join((*map(str, sizes), *layouts, *flags)) + "}"]
    run: list[Argument] = ["call", Pointer(a), Pointer(b), Pointer(target, write=True)]
    if bias is not None:
        init.append(Pointer(bias))
    if addend is not None:
        run.append(Pointer(addend))
    followed = "".join(f", {node.op.split('.')[1]}" for node in nodes[1:])
    times = f"{product.batch} x " if product.batch > 1 else ""
    return LibraryCall(
        name,
        f"{what}: {times}[{product.m}, {product.k}] x [{product.k}, {product.n}]{followed}",
        tuple(node.name for node in nodes),
        "stitch/cuda/gemm.cuh",
        "stitch::cuda::Gemm",
        tuple(init),
        tuple(run),
        chosen=f"cuBLASLt, {'TF32 allowed' if allow_tf32 else 'float32'}",
    )


def bias_of(node: GraphNode) -> ValueKey | None:
    """The bias vector of a linear or addmm node."""
    if node.op == "aten.addmm.default":
        return value_key(node.args[0])
    given = argument(node, 2, "bias") if node.op == "aten.linear.default" else None
    return None if given is None else value_key(given)


def residual_of(node: GraphNode, inside: set[str], index: GraphIndex) -> ValueKey | None:
    """The other summand of an addition of two tensors of one shape, one of them made inside the step."""
    if node.op != "aten.add.Tensor" or len(node.args) != 2 or number(node.kwargs.get("alpha", 1)) != 1:
        return None
    keys = [value_key(item) for item in node.args if isinstance(item, ValueRef)]
    others = [key for key in keys if key[0] not in inside]
    if len(keys) != 2 or len(others) != 1:
        return None
    spec = index.spec(others[0])
    return others[0] if spec.shape == node.outputs[0].shape and spec.dtype == "float32" else None


def _operands(node: GraphNode, lowering: Lowering) -> tuple[View, View]:
    """Both sides as [..., rows, k] and [..., k, columns]; vectors become matrices."""
    skip = 1 if node.op == "aten.addmm.default" else 0
    a, b = (lowering.view(value_key(item)) for item in node.args[skip : skip + 2])
    if node.op == "aten.linear.default":
        b = permute(b, (1, 0))
    if len(a.shape) == 1:
        a = View(a.buffer, (1, *a.shape), (a.shape[0], *a.strides), a.offset)
    if len(b.shape) == 1:
        b = View(b.buffer, (*b.shape, 1), (*b.strides, 1), b.offset)
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
    if len(sizes) > 1 or not _one_side_contiguous(spread):
        spread = lowering.copy(spread, row_major(spread.shape), node.name)
        sizes, (strides,) = collapse(batch, [spread.strides[:-2]])
    shape = (prod(batch), *spread.shape[-2:])
    return View(spread.buffer, shape, (strides[0], *spread.strides[-2:]), spread.offset)


def _readable(view: View, node: GraphNode, lowering: Lowering) -> View:
    return view if _one_side_contiguous(view) else lowering.copy(view, row_major(view.shape), node.name)


def _one_side_contiguous(view: View) -> bool:
    """Whether the library can read the matrices: rows or columns without gaps, each aligned at its begin."""
    (rows, columns), (down, across) = view.shape[-2:], view.strides[-2:]
    aligned = view.offset % ALIGNED_ELEMENTS == 0
    by_rows = (across == 1 or columns == 1) and (down >= columns or rows == 1)
    by_columns = (down == 1 or rows == 1) and (across >= rows or columns == 1)
    return aligned and (by_rows or by_columns)


def _stored(view: View) -> Stored:
    rows, columns = view.shape[-2:]
    down, across = view.strides[-2:]
    batch_stride = view.strides[0] if len(view.shape) > 2 else 0
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return Stored(view, False, max(down, columns) if rows > 1 else columns, batch_stride)
    return Stored(view, True, max(across, rows) if columns > 1 else rows, batch_stride)


def _product(operands: tuple[View, View], target: View) -> Product:
    a, b = operands
    m, k = a.shape[-2:]
    n = b.shape[-1]
    batch = a.shape[0] if len(a.shape) > 2 else 1
    d = Stored(target, False, n, m * n if batch > 1 else 0)
    return Product(_stored(a), _stored(b), d, batch, m, n, k)


def _flag(value: bool) -> str:
    return "true" if value else "false"
