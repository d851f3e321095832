"""Attention as a call of attention.cuh."""

import math

from stitch_planner.stitcher.emit.call_text import CallText, braced, enumerator, flag
from stitch_planner.stitcher.lower.kernel_ir import View
from stitch_planner.stitcher.lower.operations import AttentionOp

WIDTHS = (32, 64, 96, 128, 192, 256)
"""Of heads in shared memory: those that attention_shape.cuh has tiles for."""
MOST_PLAIN_KEYS = 16
"""Up to which tiles of tensor cores would be nearly empty."""


def attention(op: AttentionOp) -> CallText:
    """attention.cuh."""
    kinds = f"stitch::cuda::AttentionWeights::{enumerator(op.weights)}, "
    kinds += f"stitch::cuda::AttentionMask::{enumerator(op.mask_kind)}"
    chosen = "plain float32"
    name = f"PlainAttention<{kinds}>"
    if _on_tensor_cores(op):
        width = next(width for width in WIDTHS if width >= max(op.q.shape[3], op.v.shape[3]))
        vector = 4 if all(map(_in_fours, (op.q, op.k, op.v, op.out))) else 1
        name = f"Attention<{width}, {kinds}, {flag(not op.allow_tf32)}, {vector}>"
        chosen = "no stored scores, " + ("TF32" if op.allow_tf32 else "float32 as three TF32 products")
    return CallText(
        "stitch/cuda/attention.cuh",
        f"stitch::cuda::{name}",
        (_options(op),),
        ("call", op.q, op.k, op.v, op.mask, op.out),
        chosen=chosen,
    )


def is_split(op: AttentionOp) -> bool:
    """Whether float32 is computed as three TF32 products."""
    return _on_tensor_cores(op) and not op.allow_tf32


def _on_tensor_cores(op: AttentionOp) -> bool:
    return op.k.shape[2] > MOST_PLAIN_KEYS


def _options(op: AttentionOp) -> str:
    """A stitch::cuda::AttentionOptions; C++17 has no initialisers by name."""
    batch, heads, queries, width = op.q.shape
    keys, value_width = op.v.shape[2:]
    fields = {
        "batch": str(batch),
        "heads": str(heads),
        "queries": str(queries),
        "keys": str(keys),
        "width": str(width),
        "value_width": str(value_width),
        "scale": f"{op.scale!r}f",
        "causal": flag(op.causal),
        "empty_is_zero": flag(op.empty_is_zero),
        "hidden": "-INFINITY" if op.hidden == -math.inf else f"{op.hidden!r}f",
        "adds_hidden": flag(op.adds_hidden),
        "q": braced(op.q.strides[:3]),
        "k": braced(op.k.strides[:3]),
        "v": braced(op.v.strides[:3]),
        "out": braced(op.out.strides[:3]),
        "mask": braced((0, 0, 0, 0) if op.mask is None else op.mask.strides),
    }
    return "{" + ", ".join(f"/*{name}=*/{text}" for name, text in fields.items()) + "}"


def _in_fours(view: View) -> bool:
    """Whether every row begins at a multiple of 16 bytes and is a multiple of them long."""
    steps = [stride for size, stride in zip(view.shape[:3], view.strides[:3], strict=True) if size > 1]
    return all(number % 4 == 0 for number in (view.shape[3], view.offset, *steps))
