"""Matrix products through oneDNN, with bias, activation and residual in the library's own epilogue."""

from collections.abc import Sequence
from math import prod

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.epilogue import Epilogue, can_follow, epilogue_of
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey
from stitch_planner.stitcher.lower.kernel_ir import View, row_major
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import BatchMatmulOp, PackedMatmulOp
from stitch_planner.stitcher.lower.templates.base import LibraryTemplate
from stitch_planner.stitcher.lower.templates.product import Product, matrices, product_of, refusal
from stitch_planner.stitcher.lower.views import collapse, expand, permute, reshape
from stitch_tools.models.graph import GraphNode


class Gemm(LibraryTemplate):
    """linear, matmul and their relatives."""

    family = "gemm"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for products of fp32 tensors."""
        return refusal(node, index)

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """Activations that oneDNN has, constants, and one residual of the result's shape."""
        return can_follow(nodes, candidate, index)

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """A prepacked product where the right side is a constant, else a batched one."""
        product = product_of(nodes[0])
        assert product is not None
        weight = lowering.view(product.b)
        if product.b_transposed:
            weight = permute(weight, (1, 0))
        # The library packs a weight from the address of its buffer, so a window that begins later is copied
        # once.
        if weight.offset or _packing(weight) is None:
            weight = lowering.keep(weight, row_major(weight.shape), product.b[0]) or weight
        if weight.buffer.role == "param" and weight.offset == 0 and _packing(weight) is not None:
            _lower_packed(nodes, product, weight, lowering)
        else:
            _lower_batched(nodes, product, lowering)


def _packing(weight: View) -> tuple[bool, int] | None:
    """Whether a parameter lies as [N, K], and the distance between its rows; None where it has to be copied.

    The library takes one distance, so that the other one must be 1, and rows may not share elements.
    """
    if len(weight.shape) != 2 or not weight.numel:
        return None
    (depth, width), (down, across) = weight.shape, weight.strides
    if (down == 1 and depth > 1) or (depth == 1 and across != 1):
        return (True, max(across, depth)) if across >= depth or width == 1 else None
    if across == 1 or width == 1:
        return (False, max(down, width)) if down >= width or depth == 1 else None
    return None


def _lower_packed(nodes: Sequence[GraphNode], product: Product, weight: View, lowering: Lowering) -> None:
    depth, width = weight.shape
    packing = _packing(weight)
    assert packing is not None
    transposed, distance = packing
    # All leading dims are one row dim: the weight is the same for each of them.
    rows = prod(lowering.index.shape(product.a)) // depth if depth else 0
    a = _matrix(lowering, product.a, (rows, depth))
    # A bias that the forward computes is not there yet when the library packs the weight.
    packed = product.bias if product.alpha == 1 and _is_packable(product.bias, lowering) else None
    epilogue = epilogue_of(nodes, lowering, alpha=product.alpha, bias=None if packed else product.bias)
    target = lowering.new((nodes[-1].name, 0))
    operands = _operands(epilogue, lowering, (rows, width))
    lowering.call(
        f"gemm_{site(nodes[0])}",
        f"{site(nodes[0])}: [{rows}, {depth}] x [{depth}, {width}]{epilogue.comment}",
        nodes,
        PackedMatmulOp(
            weight=weight,
            bias=None if packed is None else lowering.view(packed),
            a=a,
            out=target,
            operands=operands,
            post=epilogue.post,
            weight_transposed=transposed,
            weight_ld=distance,
        ),
    )


def _matrix(lowering: Lowering, key: ValueKey, shape: tuple[int, int]) -> View:
    """A value as rows that oneDNN can read: contiguous elements, any distance between rows."""
    matrix = reshape(lowering.view(key), shape)
    if (
        matrix is None
        or (matrix.strides[1] != 1 and shape[1] != 1)
        or (matrix.strides[0] < shape[1] and shape[0] > 1)
    ):
        matrix = reshape(lowering.dense(key), shape)
        if matrix is None or matrix.strides[1] != 1:
            dense = lowering.copy(lowering.view(key), row_major(lowering.view(key).shape), key[0])
            matrix = reshape(dense, shape)
    assert matrix is not None
    # The distance between rows must be at least their length, also where there is one row and torch says 0 or
    # 1.
    row = max(matrix.strides[0], shape[1], 1)
    return View(matrix.buffer, shape, (row, 1), matrix.offset)


def _is_packable(key: ValueKey | None, lowering: Lowering) -> bool:
    """Whether the value is a vector that lies dense in a parameter: the library may keep a pointer to it."""
    if key is None:
        return False
    view = lowering.view(key)
    return view.buffer.role == "param" and view.is_dense and len(view.shape) == 1


def _operands(epilogue: Epilogue, lowering: Lowering, shape: tuple[int, ...]) -> tuple[View, ...]:
    """What post-ops read, in their order, as matrices of the result's shape."""
    return tuple(_dense_matrix(lowering, key, shape) for key in epilogue.operands)


def _dense_matrix(lowering: Lowering, key: ValueKey, shape: tuple[int, ...]) -> View:
    dense = lowering.dense(key)
    if dense.numel != prod(shape):  # a value for each column
        return dense
    matrix = reshape(dense, shape)
    assert matrix is not None
    return matrix


def _lower_batched(nodes: Sequence[GraphNode], product: Product, lowering: Lowering) -> None:
    a, b = matrices(product, lowering)
    target = lowering.new((nodes[-1].name, 0))
    sides = (a, product.a), (b, product.b)
    lower_product(nodes, *sides, target, lowering, alpha=product.alpha, bias=product.bias)


Side = tuple[View, ValueKey]
"""Matrices [..., rows, columns], and the value that they show."""


def lower_product(
    nodes: Sequence[GraphNode],
    left: Side,
    right: Side,
    target: View,
    lowering: Lowering,
    *,
    alpha: float = 1.0,
    bias: ValueKey | None = None,
) -> None:
    """Adds the call for target = alpha * left @ right + bias and the epilogue of `nodes` behind the first."""
    (a, a_key), (b, b_key) = left, right
    a, b = _readable(a, lowering, a_key), _readable(b, lowering, b_key)
    rows, depth = a.shape[-2:]
    width = b.shape[-1]
    batch = _batch(a, b, target)
    # The call has two batch dims. A copy makes the operands dense, which collapses all batch dims into one.
    if len(batch[0]) > 2 or _repeats(*batch):
        a = lowering.copy(a, row_major(a.shape), a_key[0])
        b = lowering.copy(b, row_major(b.shape), b_key[0])
        batch = _batch(a, b, target)
    sizes, (a_batch, b_batch, c_batch) = batch
    epilogue = epilogue_of(nodes, lowering, alpha=alpha, bias=bias)
    operands = _operands(epilogue, lowering, (prod(sizes), rows, width))
    lowering.call(
        f"matmul_{site(nodes[0])}",
        f"{site(nodes[0])}: {prod(sizes)} x [{rows}, {depth}] x [{depth}, {width}]{epilogue.comment}",
        nodes,
        BatchMatmulOp(
            a=a,
            b=b,
            out=target,
            operands=operands,
            post=epilogue.post,
            # In front comes a size of 1, over which any stride does.
            batch=_two(sizes, 1),
            a_strides=_two(a_batch, 0),
            b_strides=_two(b_batch, 0),
            out_strides=_two(c_batch, 0),
        ),
    )


def _two(values: Sequence[int], front: int) -> tuple[int, int]:
    """One or two numbers of batch dims as two."""
    first, second = ([front] * (2 - len(values))) + list(values)
    return first, second


def _readable(view: View, lowering: Lowering, key: ValueKey) -> View:
    """The matrix with one contiguous side, as oneDNN wants it."""
    rows, columns = view.shape[-2:]
    down, across = view.strides[-2:]
    fine = (across == 1 and (down >= columns or rows == 1)) or (
        down == 1 and (across >= rows or columns == 1)
    )
    if not fine:
        return lowering.copy(view, row_major(view.shape), key[0])
    # Of a single row torch may report any distance to the next; the library checks it all the same.
    if across == 1 and rows == 1:
        return View(view.buffer, view.shape, (*view.strides[:-2], max(columns, 1), 1), view.offset)
    if down == 1 and columns == 1 and across != 1:
        return View(view.buffer, view.shape, (*view.strides[:-1], max(rows, 1)), view.offset)
    return view


def _batch(a: View, b: View, target: View) -> tuple[list[int], list[list[int]]]:
    """Batch dims of all three, broadcast and collapsed."""
    shape = target.shape[: max(len(a.shape), len(b.shape)) - 2]
    result = row_major(target.shape)[: len(shape)]
    return collapse(shape, [_batch_strides(a, shape), _batch_strides(b, shape), result])


def _batch_strides(view: View, shape: tuple[int, ...]) -> tuple[int, ...]:
    head = View(view.buffer, view.shape[:-2], view.strides[:-2], view.offset)
    return expand(head, shape).strides


def _repeats(sizes: list[int], walks: list[list[int]]) -> bool:
    """Whether both sides are the same matrix along a batch dim: the library knows its length from neither."""
    first, second, _ = walks
    return any(size > 1 and not a and not b for size, a, b in zip(sizes, first, second, strict=True))
