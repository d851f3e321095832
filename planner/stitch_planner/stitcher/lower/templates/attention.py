"""Attention: scaled_dot_product_attention, and two products around a softmax or a ReLU of masked scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.kernel_ir import View, row_major
from stitch_planner.stitcher.lower.lowering import Lowering, UnloweredError
from stitch_planner.stitcher.lower.operations import AttentionOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.lower.views import expand, permute
from stitch_tools.models.graph import Argument, GraphNode, ValueRef

SDPA = "aten.scaled_dot_product_attention.default"
_PRODUCTS = frozenset(["aten.matmul.default", "aten.bmm.default", "aten.__matmul__.default"])
_WITH_MASK = "aten.baddbmm.default"
_SCALINGS = frozenset(["aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor", "aten.div.Scalar"])
MaskKind = Literal["none", "keep", "hide", "add"]
_SOFTMAX = frozenset(["aten.softmax.int", "aten._softmax.default"])
_RELU = "aten.relu.default"


@dataclass(frozen=True)
class AttentionPattern:
    """One attention, however it was written."""

    nodes: tuple[GraphNode, ...]
    q: ValueKey
    k: ValueKey
    v: ValueKey | None = None
    k_transposed: bool = False
    """Whether k's value is [..., width, keys]."""
    mask: ValueKey | None = None
    mask_kind: MaskKind = "none"
    scale: float = 1.0
    causal: bool = False
    empty_is_zero: bool = False
    weights: Literal["softmax", "relu"] = "softmax"
    hidden: float = -math.inf
    """What the score of a key becomes that the mask hides."""
    adds_hidden: bool = False
    """Whether it is added, as scaled_dot_product_attention does."""


def _sdpa(node: GraphNode, index: GraphIndex) -> AttentionPattern | str:
    if number(argument(node, 4, "dropout_p", 0.0)) > 0:
        return "attention with dropout has no template"
    if argument(node, 7, "enable_gqa") is True:
        return "grouped-query attention has no template"
    q, k, v = (value_key(item) for item in node.args[:3])
    scale, given = argument(node, 6, "scale"), argument(node, 3, "attn_mask")
    mask = None if given is None else value_key(given)
    kind: MaskKind = "none" if mask is None else "keep" if index.spec(mask).dtype == "bool" else "add"
    # torch's default scale, 1 / sqrt(width), is only applied where the call gives none.
    width = index.shape(q)[-1]
    return AttentionPattern(
        (node,),
        q,
        k,
        v,
        mask=mask,
        mask_kind=kind,
        scale=1.0 / math.sqrt(width) if scale is None else float(number(scale)),
        causal=argument(node, 5, "is_causal") is True,
        empty_is_zero=True,
        adds_hidden=True,
    )


def _written_out(first: GraphNode, index: GraphIndex) -> AttentionPattern | None:
    """The attention that begins with the product of queries and keys, or with the scaling of its queries."""
    pattern = _begun(first, index)
    is_weighed = False
    while pattern is not None:
        last = pattern.nodes[-1]
        node = index.sole_user(last)
        if node is None:
            return None
        own = (last.name, 0)
        if is_weighed:
            return _closed(pattern, node, own)
        weighed = _weighed(pattern, node)
        is_weighed = weighed is not None
        pattern = weighed or _scaled(pattern, node, own) or _masked(pattern, node, own, index)
    return None


def _begun(first: GraphNode, index: GraphIndex) -> AttentionPattern | None:
    """The pattern up to the product of queries and keys."""
    if first.op in _PRODUCTS:
        q, k = (value_key(item) for item in first.args[:2])
        return AttentionPattern((first,), q, k, k_transposed=True)
    if first.op == _WITH_MASK:
        factors = [number(first.kwargs.get(name, 1)) for name in ("alpha", "beta")]
        mask, q, k = (value_key(item) for item in first.args[:3])
        if factors != [1, 1]:
            return None
        return AttentionPattern((first,), q, k, k_transposed=True, mask=mask, mask_kind="add")
    factor = _factor(first)
    product = None if factor is None else index.sole_user(first)
    if factor is None or product is None or product.op not in _PRODUCTS | {_WITH_MASK}:
        return None
    pattern = _begun(product, index)
    scaled = (first.name, 0)
    # Scaled keys would do as well, but they are transposed behind it.
    if pattern is None or pattern.q != scaled or pattern.k == scaled or pattern.mask == scaled:
        return None
    return replace(pattern, nodes=(first, product), q=value_key(first.args[0]), scale=factor)


def _weighed(pattern: AttentionPattern, node: GraphNode) -> AttentionPattern | None:
    """The pattern with what turns scores into weights."""
    nodes = (*pattern.nodes, node)
    if node.op == _RELU:
        return replace(pattern, nodes=nodes, weights="relu")
    if node.op not in _SOFTMAX or node.outputs[0].dtype != "float32":
        return None
    is_last = int(number(argument(node, 1, "dim"))) in (-1, len(node.outputs[0].shape) - 1)
    return replace(pattern, nodes=nodes) if is_last else None


def _closed(pattern: AttentionPattern, node: GraphNode, own: ValueKey) -> AttentionPattern | None:
    """The pattern with its last product."""
    if node.op not in _PRODUCTS or value_key(node.args[0]) != own or value_key(node.args[1]) == own:
        return None
    return replace(pattern, nodes=(*pattern.nodes, node), v=value_key(node.args[1]))


def _scaled(pattern: AttentionPattern, node: GraphNode, own: ValueKey) -> AttentionPattern | None:
    """The pattern with a scaling by a number, which must come before the mask."""
    factor = _factor(node)
    if factor is None or pattern.mask is not None or value_key(node.args[0]) != own:
        return None
    return replace(pattern, nodes=(*pattern.nodes, node), scale=pattern.scale * factor)


def _factor(node: GraphNode) -> float | None:
    """What the node multiplies a tensor with; None for other operations."""
    if (
        node.op not in _SCALINGS
        or len(node.args) != 2
        or node.kwargs
        or not isinstance(node.args[0], ValueRef)
    ):
        return None
    by = node.args[1]
    if isinstance(by, bool) or not isinstance(by, int | float) or by == 0:
        return None
    return float(by) if node.op.startswith("aten.mul.") else 1.0 / float(by)


def _masked(
    pattern: AttentionPattern, node: GraphNode, own: ValueKey, index: GraphIndex
) -> AttentionPattern | None:
    """The pattern with one mask: hidden or kept keys, or scores to add."""
    if pattern.mask is not None or node.outputs[0].shape != index.shape(own):
        return None
    name, args = node.op.split(".")[1], node.args
    if name in ("masked_fill", "where") and len(args) == 3:
        mask, scores = args[:2] if name == "where" else (args[1], args[0])
        fill, kind = _number_or_none(args[2]), "keep" if name == "where" else "hide"
        if fill is None or not isinstance(scores, ValueRef) or value_key(scores) != own:
            return None
        return _with_mask(pattern, node, mask, kind, fill)
    if name == "add" and len(args) == 2 and not node.kwargs and all(isinstance(a, ValueRef) for a in args):
        others = [a for a in args if value_key(a) != own]
        if len(others) == 1 and index.spec(value_key(others[0])).dtype == "float32":
            return _with_mask(pattern, node, others[0], "add")
    return None


def _with_mask(
    pattern: AttentionPattern, node: GraphNode, mask: Argument, kind: MaskKind, hidden: float = -math.inf
) -> AttentionPattern:
    nodes = (*pattern.nodes, node)
    return replace(pattern, nodes=nodes, mask=value_key(mask), mask_kind=kind, hidden=hidden)


def _number_or_none(value: Argument) -> float | None:
    """A finite number or minus infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        given = float(value)
    except ValueError:
        return None
    return given if given < math.inf else None


def find_attention(node: GraphNode, index: GraphIndex) -> AttentionPattern | str:
    """The attention that starts at `node`, or why there is none."""
    pattern = _sdpa(node, index) if node.op == SDPA else _written_out(node, index) or NOT_MINE
    if isinstance(pattern, str):
        return pattern
    assert pattern.v is not None
    keys = [pattern.q, pattern.k, pattern.v]
    shapes = [index.shape(key) for key in keys]
    fine = all(index.spec(key).dtype == "float32" for key in keys) and all(
        len(shape) in (3, 4) and shape[:-2] == shapes[0][:-2] for shape in shapes
    )
    if fine and pattern.mask is not None:
        fine = index.spec(pattern.mask).dtype == ("float32" if pattern.mask_kind == "add" else "bool")
    if fine:
        return pattern
    return "attention of tensors that differ in their batch has no template" if node.op == SDPA else NOT_MINE


def attention_operation(
    pattern: AttentionPattern, nodes: Sequence[GraphNode], lowering: Lowering, *, allow_tf32: bool = False
) -> AttentionOp:
    """The operation that computes a pattern; binds its result.

    Raises:
        UnloweredError: the planner did not give all nodes of the pattern to this step.
    """
    if {node.name for node in pattern.nodes} - {node.name for node in nodes}:
        names = tuple(node.name for node in nodes)
        raise UnloweredError("attention whose mask depends on its scores has no template", names)
    assert pattern.v is not None
    q, v = _heads(lowering, pattern.q), _heads(lowering, pattern.v)
    k = _heads(lowering, pattern.k, transposed=pattern.k_transposed)
    batch, heads, queries, _ = q.shape
    result = pattern.nodes[-1]
    target = lowering.new((result.name, 0), strides=_stored(result, lowering.index))
    shape = (batch, heads, queries, v.shape[2])
    return AttentionOp(
        q=q,
        k=k,
        v=v,
        mask=None if pattern.mask is None else _mask(lowering, pattern.mask, shape),
        out=_four(target),
        mask_kind=pattern.mask_kind,
        scale=pattern.scale,
        causal=pattern.causal,
        empty_is_zero=pattern.empty_is_zero,
        weights=pattern.weights,
        hidden=pattern.hidden,
        adds_hidden=pattern.adds_hidden,
        allow_tf32=allow_tf32,
    )


def add_attention(pattern: AttentionPattern, operation: AttentionOp, lowering: Lowering) -> None:
    """Appends the call."""
    batch, heads, queries, _ = operation.q.shape
    result = pattern.nodes[-1]
    comment = f"{site(result)}: {batch} x {heads} heads, {queries} x {operation.k.shape[2]} scores"
    lowering.call(f"attention_{result.name}", comment, pattern.nodes, operation)


class Attention(LibraryTemplate):
    """Attention of float32 heads on CPUs: weights by softmax, hidden keys at minus infinity."""

    family = "attention"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None where an attention starts at `node`."""
        pattern = find_attention(node, index)
        if isinstance(pattern, str):
            return pattern
        return None if pattern.weights == "softmax" and pattern.hidden == -math.inf else NOT_MINE

    def gather(self, node: GraphNode, index: GraphIndex) -> tuple[GraphNode, ...]:
        """Both products and what lies between."""
        pattern = find_attention(node, index)
        return (node,) if isinstance(pattern, str) else pattern.nodes

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        pattern = find_attention(nodes[0], lowering.index)
        assert not isinstance(pattern, str)
        add_attention(pattern, attention_operation(pattern, nodes, lowering), lowering)


def _four(view: View) -> View:
    """The window with a batch of 1 put in where it has three dims."""
    if len(view.shape) == 4:
        return view
    return View(view.buffer, (1, *view.shape), (0, *view.strides), view.offset)


def _heads(lowering: Lowering, key: ValueKey, *, transposed: bool = False) -> View:
    """The value as [batch, heads, positions, width] whose last dim has stride 1."""
    view = _four(lowering.view(key))
    view = permute(view, (0, 1, 3, 2)) if transposed else view
    if view.strides[3] == 1 or view.shape[3] == 1:
        return view
    return lowering.copy(view, row_major(view.shape), key[0])


def _stored(result: GraphNode, index: GraphIndex) -> tuple[int, ...]:
    """Strides of the result: in the order that its only reader turns it into, if any.

    Else a position's heads lie side by side: joining them again, which nearly always follows, is a view then.
    """
    shape = result.outputs[0].shape
    count = len(shape)
    order = _turned(index.sole_user(result), count)
    if order is None:
        order = (0, 2, 1, 3) if count == 4 else tuple(range(count))
    strides = [0] * count
    for dim, stride in zip(order, row_major(tuple(shape[dim] for dim in order)), strict=True):
        strides[dim] = stride
    return tuple(strides)


def _turned(node: GraphNode | None, count: int) -> tuple[int, ...] | None:
    """The order of dims that a transposition or permutation makes; None where it moves the last one."""
    if node is None:
        return None
    order = list(range(count))
    if node.op == "aten.transpose.int":
        first, second = (int(number(item)) % count for item in node.args[1:3])
        order[first], order[second] = order[second], order[first]
    elif node.op == "aten.permute.default" and isinstance(node.args[1], tuple):
        order = [int(number(item)) % count for item in node.args[1]]
    else:
        return None
    return tuple(order) if order[-1] == count - 1 else None


def _mask(lowering: Lowering, key: ValueKey, shape: tuple[int, ...]) -> View:
    view = lowering.view(key)
    if len(view.shape) == 3 and shape[0] == 1:
        view = _four(view)
    return expand(view, shape)
