"""Recurrent layers as a call of rnn.cuh, whose kernels are written for exact sizes."""

from stitch_planner.stitcher.emit.call_text import CallText, enumerator, flag
from stitch_planner.stitcher.lower.operations import RnnOp


def rnn_text(op: RnnOp) -> CallText:
    """The call that computes all layers, directions and steps on a GPU."""
    sizes = (op.features, op.units, op.layers, op.directions, op.batch)
    numbers = ", ".join(map(str, sizes))
    options = (
        f"{{/*steps=*/{op.steps}, /*batch_first=*/{flag(op.batch_first)}, /*has_bias=*/{flag(op.has_bias)}}}"
    )
    states = (op.hidden, op.cell, op.out, op.last_hidden, op.last_cell)
    return CallText(
        "stitch/cuda/rnn.cuh",
        f"stitch::cuda::Rnn<stitch::cuda::Cell::{enumerator(op.kind)}, {numbers}>",
        ("lib", options, op.weights),
        ("call", op.source, *states),
        chosen="one kernel for all steps where thread-block clusters hold the weights",
    )
