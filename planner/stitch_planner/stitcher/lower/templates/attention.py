"""Attention: scaled_dot_product_attention, and the same written out as two products around a softmax."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.kernel_ir import View, row_major
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import AttentionOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.lower.views import expand, permute
from stitch_tools.models.graph import Argument, GraphNode, ValueRef

_SDPA = "aten.scaled_dot_product_attention.default"
_PRODUCTS = frozenset(["aten.matmul.default", "aten.bmm.default", "aten.__matmul__.default"])
MaskKind = Literal["none", "keep", "hide", "add"]
_SOFTMAX = frozenset(["aten.softmax.int", "aten._softmax.default"])


@dataclass(frozen=True)
class _Pattern:
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
    inside: frozenset[str] = field(default_factory=frozenset[str])


def _sdpa(node: GraphNode, index: GraphIndex) -> _Pattern | str:
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
    return _Pattern(
        (node,),
        q,
        k,
        v,
        mask=mask,
        mask_kind=kind,
        scale=1.0 / math.sqrt(width) if scale is None else float(number(scale)),
        causal=argument(node, 5, "is_causal") is True,
        empty_is_zero=True,
    )


def _written_out(first: GraphNode, index: GraphIndex) -> _Pattern | None:
    """The attention that begins with the product of queries and keys `first`; None where there is none."""
    pattern = _Pattern((first,), value_key(first.args[0]), value_key(first.args[1]), k_transposed=True)
    normalised = False
    while True:
        last = pattern.nodes[-1]
        node = index.sole_user(last)
        if node is None:
            return None
        own = (last.name, 0)
        if normalised:
            return _closed(pattern, node, own)
        if node.op in _SOFTMAX:
            dim = int(number(argument(node, 1, "dim")))
            if dim not in (-1, len(node.outputs[0].shape) - 1):
                return None
            normalised = True
            pattern = replace(pattern, nodes=(*pattern.nodes, node))
            continue
        wider = _scaled(pattern, node, own) or _masked(pattern, node, own, index)
        if wider is None:
            return None
        pattern = wider


def _closed(pattern: _Pattern, node: GraphNode, own: ValueKey) -> _Pattern | None:
    """The pattern with its last product."""
    if node.op not in _PRODUCTS or value_key(node.args[0]) != own or value_key(node.args[1]) == own:
        return None
    return replace(pattern, nodes=(*pattern.nodes, node), v=value_key(node.args[1]))


def _scaled(pattern: _Pattern, node: GraphNode, own: ValueKey) -> _Pattern | None:
    """The pattern with a scaling by a number, which must come before the mask."""
    if pattern.mask is not None or len(node.args) != 2 or node.kwargs:
        return None
    if not isinstance(node.args[0], ValueRef) or value_key(node.args[0]) != own:
        return None
    by = node.args[1]
    if isinstance(by, bool) or not isinstance(by, int | float) or by == 0:
        return None
    factor = {"mul": float(by), "div": 1.0 / float(by)}.get(node.op.split(".")[1])
    if factor is None:
        return None
    return replace(pattern, nodes=(*pattern.nodes, node), scale=pattern.scale * factor)


def _masked(pattern: _Pattern, node: GraphNode, own: ValueKey, index: GraphIndex) -> _Pattern | None:
    """The pattern with one mask: hidden or kept keys, or scores to add."""
    if pattern.mask is not None or node.outputs[0].shape != index.shape(own):
        return None
    name, args = node.op.split(".")[1], node.args
    if name == "masked_fill" and _minus_infinity(args[2]) and value_key(args[0]) == own:
        return _with_mask(pattern, node, args[1], "hide")
    if name == "where" and _minus_infinity(args[2]) and value_key(args[1]) == own:
        return _with_mask(pattern, node, args[0], "keep")
    if name == "add" and len(args) == 2 and not node.kwargs and all(isinstance(a, ValueRef) for a in args):
        others = [a for a in args if value_key(a) != own]
        if len(others) == 1 and index.spec(value_key(others[0])).dtype == "float32":
            return _with_mask(pattern, node, others[0], "add")
    return None


def _with_mask(pattern: _Pattern, node: GraphNode, mask: Argument, kind: MaskKind) -> _Pattern:
    return replace(pattern, nodes=(*pattern.nodes, node), mask=value_key(mask), mask_kind=kind)


def _minus_infinity(value: Argument) -> bool:
    return value in ("-inf", float("-inf"))


def _find(node: GraphNode, index: GraphIndex) -> _Pattern | str:
    """The attention that starts at `node`, or why there is none."""
    if node.op == _SDPA:
        pattern = _sdpa(node, index)
    elif node.op in _PRODUCTS:
        pattern = _written_out(node, index) or NOT_MINE
    else:
        return NOT_MINE
    if isinstance(pattern, str):
        return pattern
    assert pattern.v is not None
    keys = [pattern.q, pattern.k, pattern.v]
    shapes = [index.shape(key) for key in keys]
    fine = all(index.spec(key).dtype == "float32" for key in keys) and all(
        len(shape) in (3, 4) and shape[:-2] == shapes[0][:-2] for shape in shapes
    )
    if fine:
        return pattern
    return "attention of tensors that differ in their batch has no template" if node.op == _SDPA else NOT_MINE


class Attention(LibraryTemplate):
    """Attention of float32 heads."""

    family = "attention"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None where an attention starts at `node`."""
        pattern = _find(node, index)
        return pattern if isinstance(pattern, str) else None

    def gather(self, node: GraphNode, index: GraphIndex) -> tuple[GraphNode, ...]:
        """Both products and what lies between."""
        pattern = _find(node, index)
        return (node,) if isinstance(pattern, str) else pattern.nodes

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        pattern = _find(nodes[0], lowering.index)
        assert not isinstance(pattern, str)
        assert pattern.v is not None
        q, v = _heads(lowering, pattern.q), _heads(lowering, pattern.v)
        k = _heads(lowering, pattern.k, transposed=pattern.k_transposed)
        batch, heads, queries, _ = q.shape
        keys = v.shape[2]
        result = pattern.nodes[-1]
        target = lowering.new((result.name, 0), strides=_interleaved(result.outputs[0].shape))
        mask = None if pattern.mask is None else _mask(lowering, pattern.mask, (batch, heads, queries, keys))
        lowering.call(
            f"attention_{result.name}",
            f"{site(result)}: {batch} x {heads} heads, {queries} x {keys} scores",
            pattern.nodes,
            AttentionOp(
                q=q,
                k=k,
                v=v,
                mask=mask,
                out=_four(target),
                mask_kind=pattern.mask_kind,
                scale=pattern.scale,
                causal=pattern.causal,
                empty_is_zero=pattern.empty_is_zero,
            ),
        )


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


def _interleaved(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of [batch, heads, positions, width] stored with a position's heads side by side.

    Joining the heads again, which nearly always follows, is then a view.
    """
    if len(shape) != 4:
        return row_major(shape)
    _, heads, positions, width = shape
    return positions * heads * width, width, heads * width, 1


def _mask(lowering: Lowering, key: ValueKey, shape: tuple[int, ...]) -> View:
    view = lowering.view(key)
    if len(view.shape) == 3 and shape[0] == 1:
        view = _four(view)
    return expand(view, shape)
