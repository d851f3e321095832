"""What templates over images share: channels-last windows, pairs of sizes, our own headers' activations."""

from stitch_planner.stitcher.lower.copies import layout_call
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument
from stitch_planner.stitcher.lower.kernel_ir import View, channels_last
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import Activation
from stitch_planner.stitcher.lower.scalars import number
from stitch_tools.models.graph import Argument, GraphNode


def as_2d(view: View) -> View:
    """The window with a height of 1 put in, where it is [N, C, L]."""
    if len(view.shape) == 4:
        return view
    n, c, length = view.shape
    return View(
        view.buffer,
        (n, c, 1, length),
        (*view.strides[:2], length * view.strides[2], view.strides[2]),
        view.offset,
    )


def last(lowering: Lowering, key: ValueKey) -> View:
    """The value in channels-last order; transposed where it lies otherwise."""
    view = lowering.view(key)
    return view if view.is_channels_last else lowering.copy(view, channels_last(view.shape), key[0])


def place(lowering: Lowering, key: ValueKey, *, first: bool = False) -> View:
    """Where a call writes an image: `key`'s own buffer, or one to be moved there by `settle`.

    A result that the program returns must end up as N, C, H, W, whatever a call likes better.
    """
    shape = lowering.index.shape(key)
    target = lowering.new(key, strides=None if first else channels_last(shape))
    # `new` does not grant the wish for strides to an output of the program, see there.
    if first or target.is_channels_last:
        return target
    return lowering.scratch(f"{key[0]}_last", shape, target.dtype, strides=channels_last(shape))


def settle(lowering: Lowering, key: ValueKey, written: View) -> None:
    """Moves what a call wrote to where the value belongs; to be called after the call was added."""
    if lowering.view(key) != written:
        target = lowering.view(key)
        lowering.copy(written, target.strides, key[0], target)


def stays_first(node: GraphNode, view: View, index: GraphIndex) -> bool:
    """Whether an image should be worked on as N, C, H, W: it lies so, and no convolution reads the result."""
    if not view.is_dense or view.is_channels_last:
        return False
    # oneDNN's convolutions want channels last: transposing for the one that follows would cost what is saved
    # here.
    return not any(".conv" in user.op for user in index.users((node.name, 0)))


def strided_copy(lowering: Lowering, source: View, target: View, name: str, nodes: tuple[str, ...]) -> None:
    """Adds a call that copies `source` to `target` (equal shapes)."""
    if source.numel:
        lowering.add(layout_call(lowering.unique(f"move_{name}"), source, target, name, nodes))


def pair(value: Argument, default: int) -> tuple[int, int]:
    """Two numbers from what torch accepts: nothing, one number, or a list of one or two."""
    if value is None or value == ():
        return default, default
    if isinstance(value, tuple):
        numbers = [int(number(item)) for item in value]
        return (numbers[0], numbers[1]) if len(numbers) == 2 else (numbers[0], numbers[0])
    return int(number(value)), int(number(value))


def line(value: Argument, default: int) -> tuple[int, int]:
    """The pair of a one-dimensional operation: nothing happens along the height that was put in."""
    return default, pair(value, default)[1]


def is_fp32(node: GraphNode, index: GraphIndex) -> bool:
    """Whether all tensors that the node reads and writes are float32."""
    return all(index.spec(key).dtype == "float32" for key in index.operands(node)) and all(
        out.dtype == "float32" for out in node.outputs
    )


def own_activation(node: GraphNode) -> tuple[Activation, float] | None:
    """An activation that our own kernels have behind a norm, and its slope; None for other nodes."""
    name = node.op.split(".")[1]
    if name in _SIMPLE:
        return _SIMPLE[name], 0.0
    if name == "gelu":
        return ("gelu_tanh" if argument(node, 1, "approximate") == "tanh" else "gelu_erf"), 0.0
    if name == "leaky_relu":
        return "leaky_relu", float(number(argument(node, 1, "negative_slope", 0.01)))
    if name == "hardtanh" and (argument(node, 1, "min_val", -1.0), argument(node, 2, "max_val", 1.0)) == (
        0,
        6,
    ):
        return "relu6", 0.0
    return None


_SIMPLE: dict[str, Activation] = {
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "hardswish": "hardswish",
}
