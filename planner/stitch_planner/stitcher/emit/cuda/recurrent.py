"""Recurrent layers as a call of rnn.cuh, whose kernels are written for exact sizes."""

from stitch_planner.stitcher.emit.call_text import CallText, enumerator, flag
from stitch_planner.stitcher.lower.operations import RnnOp


def rnn_text(op: RnnOp) -> CallText:
    """The call that computes all layers, directions and steps on a GPU."""
    sizes = (op.features, op.units, op.layers, op.directions, op.batch)
    numbers = ", ".join(map(str, sizes))
    rows = [weight.strides[0] if op.one_bias else 0 for weight in op.weights[:2]]
    fields = {
        "steps": str(op.steps),
        "batch_first": flag(op.batch_first),
        "biases": str(0 if not op.has_bias else 1 if op.one_bias else 2),
        "input_row": str(rows[0]),
        "weight_row": str(rows[1]),
    }
    options = "{" + ", ".join(f"/*{name}=*/{text}" for name, text in fields.items()) + "}"
    states = (op.hidden, op.cell, op.out, op.last_hidden, op.last_cell)
    return CallText(
        "stitch/cuda/rnn.cuh",
        f"stitch::cuda::Rnn<stitch::cuda::Cell::{enumerator(op.kind)}, {numbers}>",
        ("lib", options, op.weights),
        ("call", op.source, *states),
        chosen="one kernel for all steps where thread-block clusters hold the weights",
    )
