"""Attention on GPUs: one kernel that never stores scores, for heads of up to 256 numbers.

Wider heads, and batches of more than two dims, are two batched products around one row kernel that scales,
masks and normalises; their scores lie in the workspace.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stitch_planner.stitcher.lower.cuda.products import as_batch, product_call
from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.kernel_ir import Access, Body, RowKernel, View, row_major
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.scalar_bodies import BodyBuilder
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.attention import (
    SDPA,
    AttentionPattern,
    add_attention,
    attention_operation,
    find_attention,
)
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.lower.views import expand, permute
from stitch_tools.models.graph import GraphNode

WIDEST_HEAD = 256
"""Numbers of a head that the kernel takes."""
MOST_POSITIONS = 1 << 24
"""Of queries and keys: their numbers fit into 32 bits, and a block for each tile into a grid."""
LARGEST_SCORES_BYTES = 4 << 30
"""Scores beyond this are left to PyTorch, which never stores them."""


@dataclass(frozen=True)
class _Weights:
    """How scores become weights."""

    scale: float
    mask: View | None
    causal: bool


class CudaAttention(LibraryTemplate):
    """scaled_dot_product_attention, and attention written out, in fp32."""

    family = "attention"

    def __init__(self, *, allow_tf32: bool = False) -> None:
        self.allow_tf32 = allow_tf32

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None where an attention starts at `node`, without dropout and grouped queries."""
        pattern = _find(node, index)
        if not isinstance(pattern, str):
            return None
        return _refusal_of_stored(node, index) if node.op == SDPA else pattern

    def gather(self, node: GraphNode, index: GraphIndex) -> tuple[GraphNode, ...]:
        """Both products and what lies between."""
        pattern = _find(node, index)
        return (node,) if isinstance(pattern, str) else pattern.nodes

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call where the kernel takes such heads."""
        pattern = _find(nodes[0], lowering.index)
        if isinstance(pattern, str):
            _lower_stored(nodes, lowering, allow_tf32=self.allow_tf32)
            return
        operation = attention_operation(pattern, nodes, lowering, allow_tf32=self.allow_tf32)
        add_attention(pattern, operation, lowering)


def _find(node: GraphNode, index: GraphIndex) -> AttentionPattern | str:
    """The attention that starts at `node` and fits the kernel, or why there is none."""
    pattern = find_attention(node, index)
    if isinstance(pattern, str):
        return pattern
    assert pattern.v is not None
    q, v = index.spec(pattern.q), index.spec(pattern.v)
    widest, positions = max(q.shape[-1], v.shape[-1]), max(q.shape[-2], v.shape[-2])
    # Without queries or keys there is no block to launch.
    fits = widest <= WIDEST_HEAD and positions <= MOST_POSITIONS and q.numel * v.numel > 0
    return pattern if fits else NOT_MINE


def _refusal_of_stored(node: GraphNode, index: GraphIndex) -> str | None:
    """Why scores that are stored are no way, either; None where they are."""
    if number(argument(node, 4, "dropout_p", 0.0)) > 0:
        return "attention with dropout has no template"
    if argument(node, 7, "enable_gqa") is True:
        return "grouped-query attention has no template"
    q, k, v = (index.spec(value_key(item)) for item in node.args[:3])
    if {q.dtype, k.dtype, v.dtype} != {"float32"} or len(q.shape) < 3 or not q.numel * k.numel * v.numel:
        return "only attention of float32 batches has a template"
    if q.shape[:-2] != k.shape[:-2] or q.shape[:-2] != v.shape[:-2]:
        return "attention that broadcasts its batch has no template"
    mask = argument(node, 3, "attn_mask")
    if mask is not None and index.spec(value_key(mask)).dtype not in ("bool", "float32"):
        return "attention masks are bool or float32"
    scores = 4 * prod(q.shape[:-1]) * k.shape[-2]
    return None if scores <= LARGEST_SCORES_BYTES else "the scores would not fit into memory"


def _lower_stored(nodes: Sequence[GraphNode], lowering: Lowering, *, allow_tf32: bool) -> None:
    """Scores, weights, weighted sums."""
    node = nodes[0]
    q, k, v = (lowering.view(value_key(item)) for item in node.args[:3])
    batch, length, width = q.shape[:-2], q.shape[-2], q.shape[-1]
    count = prod(batch)
    keys = k.shape[-2]
    what = node.module_path or "attention"
    scores = lowering.scratch(f"{node.name}_scores", (count, length, keys), "float32")
    weights = lowering.scratch(f"{node.name}_weights", (count, length, keys), "float32")
    # A transposed window: the library reads k by columns, and nothing is copied.
    across = permute(as_batch(k, batch, node, lowering), (0, 2, 1))
    first = as_batch(q, batch, node, lowering)
    name = lowering.unique(f"product_{node.name}_scores")
    lowering.add(product_call(name, f"{what}, scores", nodes, first, across, scores, allow_tf32=allow_tf32))
    given = argument(node, 3, "attn_mask")
    mask = None if given is None else expand(lowering.view(value_key(given)), (*batch, length, keys))
    scale = argument(node, 6, "scale")
    how = _Weights(
        1.0 / math.sqrt(width) if scale is None else float(number(scale)),
        mask,
        argument(node, 5, "is_causal") is True,
    )
    lowering.add(
        _softmax(lowering.unique(f"k_{node.name}"), node, (*batch, length, keys), scores, weights, how)
    )
    second = as_batch(v, batch, node, lowering)
    target = lowering.new((node.name, 0))
    dense = View(
        target.buffer,
        (count, length, v.shape[-1]),
        row_major((count, length, v.shape[-1])),
        target.offset,
    )
    name = lowering.unique(f"product_{node.name}")
    lowering.add(product_call(name, f"{what}, sums", nodes, weights, second, dense, allow_tf32=allow_tf32))


def _softmax(
    name: str, node: GraphNode, shape: tuple[int, ...], scores: View, weights: View, how: _Weights
) -> RowKernel:
    """softmax(scores * scale, masked) over the keys; a row without any key gives zeros, as torch's does."""
    strides = row_major(shape)
    b = BodyBuilder()
    value = b.scaled(b.load(Access(scores.buffer, strides, scores.offset)), how.scale)
    hidden = b.const(-math.inf, "float32")
    if how.mask is not None:
        given = b.load(Access(how.mask.buffer, how.mask.strides, how.mask.offset))
        if how.mask.dtype == "bool":  # torch adds -inf, too: NaN and infinity that are hidden give NaN
            given = b.op("where", (given, b.const(0.0, "float32"), hidden), "float32")
        value = b.add(value, given)
    if how.causal:
        visible = b.op("le", (b.index(len(shape) - 1), b.index(len(shape) - 2)), "bool")
        value = b.op("where", (visible, value, hidden), "float32")
    largest = b.reduce("max", value)
    # The largest score is subtracted, so that exp never overflows.
    share = b.op("exp", (b.sub(value, largest),), "float32")
    result = b.div(share, b.reduce("sum", share))
    if how.mask is not None:
        nothing = b.op("eq", (largest, hidden), "bool")
        result = b.op("where", (nothing, b.const(0.0, "float32"), result), "float32")
    return RowKernel(
        name,
        f"weights of {node.module_path or 'attention'}",
        (node.name,),
        shape[:-1],
        shape[-1:],
        tuple(b.loads),
        Body(tuple(b.instrs), (result,)),
        (Access(weights.buffer, strides, weights.offset),),
    )
