"""Operations that move no data: the result is another window on the operand's memory."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Literal

from stitch_planner.stitcher.lower.copies import innermost
from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.kernel_ir import View, channels_last, row_major
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE
from stitch_planner.stitcher.lower.views import drop_dim, expand, permute, reshape, slice_dim
from stitch_tools.models.graph import Argument, GraphNode

Move = Callable[[GraphNode, View], list[View] | None]
"""Windows of a node's outputs; None when only a copy can have that shape."""


def _ints(value: Argument) -> list[int]:
    items = value if isinstance(value, tuple) else (value,)
    return [int(number(item)) for item in items]


def _dim(node: GraphNode, position: int, view: View, default: int = 0) -> int:
    given = argument(node, position, "dim", default)
    return int(number(given)) % max(len(view.shape), 1)


def _reshape(node: GraphNode, view: View) -> list[View] | None:
    moved = reshape(view, node.outputs[0].shape)
    return None if moved is None else [moved]


def _transpose(node: GraphNode, view: View) -> list[View]:
    rank = len(view.shape)
    if rank < 2:
        return [view]
    first, second = (
        (0, 1) if node.op.startswith("aten.t.") else tuple(int(number(a)) % rank for a in node.args[1:3])
    )
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return [permute(view, order)]


def _mirror(node: GraphNode, view: View) -> list[View]:
    order = list(range(len(view.shape)))
    order[-2:] = order[-2:][::-1]
    return [permute(view, order)]


def _mirror_all(node: GraphNode, view: View) -> list[View]:
    return [permute(view, range(len(view.shape))[::-1])]


def _permute(node: GraphNode, view: View) -> list[View]:
    return [permute(view, [d % len(view.shape) for d in _ints(node.args[1])])]


def _movedim(node: GraphNode, view: View) -> list[View]:
    rank = len(view.shape)
    source, target = ([d % rank for d in _ints(a)] for a in node.args[1:3])
    order = [d for d in range(rank) if d not in source]
    for place, dim in sorted(zip(target, source, strict=True)):
        order.insert(place, dim)
    return [permute(view, order)]


def _expand(node: GraphNode, view: View) -> list[View]:
    return [expand(view, node.outputs[0].shape)]


def _slice(node: GraphNode, view: View) -> list[View]:
    dim = _dim(node, 1, view)
    start, step = argument(node, 2, "start"), argument(node, 4, "step", 1)
    size = view.shape[dim]
    begin = 0 if start is None else int(number(start))
    begin = max(0, min(size, begin + size if begin < 0 else begin))
    return [slice_dim(view, dim, begin, node.outputs[0].shape[dim], int(number(step)))]


def _select(node: GraphNode, view: View) -> list[View]:
    dim = _dim(node, 1, view)
    return [drop_dim(view, dim, int(number(argument(node, 2, "index"))) % view.shape[dim])]


def _narrow(node: GraphNode, view: View) -> list[View]:
    dim = _dim(node, 1, view)
    start = int(number(node.args[2])) % max(view.shape[dim], 1)
    return [slice_dim(view, dim, start, node.outputs[0].shape[dim])]


def _split(node: GraphNode, view: View) -> list[View]:
    dim = _dim(node, 2, view)
    pieces: list[View] = []
    start = 0
    for out in node.outputs:
        pieces.append(slice_dim(view, dim, start, out.shape[dim]))
        start += out.shape[dim]
    return pieces


def _unbind(node: GraphNode, view: View) -> list[View]:
    dim = _dim(node, 1, view)
    return [drop_dim(view, dim, place) for place in range(view.shape[dim])]


def _unfold(node: GraphNode, view: View) -> list[View]:
    """Windows of `size` places along a dim, `step` apart, in a dim of their own behind all others."""
    dim = _dim(node, 1, view)
    size, step = (int(number(item)) for item in node.args[2:4])
    strides = list(view.strides)
    within = strides[dim]
    strides[dim] *= step
    shape = node.outputs[0].shape
    assert shape[-1] == size, node
    return [View(view.buffer, shape, (*strides, within), view.offset)]


MOVES: dict[str, Move] = {
    **{
        f"aten.{name}": _reshape
        for name in (
            "view.default",
            "reshape.default",
            "_unsafe_view.default",
            "flatten.using_ints",
            "unflatten.int",
            "unsqueeze.default",
            "squeeze.default",
            "squeeze.dim",
            "squeeze.dims",
            "view_as.default",
            "reshape_as.default",
        )
    },
    "aten.transpose.int": _transpose,
    "aten.t.default": _transpose,
    "aten.mT.default": _mirror,
    "aten.numpy_T.default": _mirror_all,
    "aten.permute.default": _permute,
    "aten.movedim.int": _movedim,
    "aten.movedim.intlist": _movedim,
    "aten.expand.default": _expand,
    "aten.expand_as.default": _expand,
    "aten.broadcast_to.default": _expand,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.narrow.default": _narrow,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.split.sizes": _split,
    "aten.chunk.default": _split,
    "aten.unbind.int": _unbind,
    "aten.unfold.default": _unfold,
}
"""Every operation of this family, with what it does to a window."""


class Windows:
    """Views."""

    family = "view"
    kind: Literal["view", "element", "library"] = "view"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for an operation of the table above."""
        return None if node.op in MOVES else NOT_MINE

    def gather(self, node: GraphNode, index: GraphIndex) -> tuple[GraphNode, ...]:
        """The node alone."""
        return (node,)

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """False: a view is no call."""
        return False

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """Binds the results; copies first only where no strides can express the new shape."""
        for node in nodes:
            key = value_key(node.args[0])
            view = lowering.view(key)
            moved = MOVES[node.op](node, view)
            if moved is None:
                moved = [_copied(node, view, lowering)]
            for place, window in enumerate(moved):
                assert prod(window.shape) == node.outputs[place].numel, node
                lowering.bind((node.name, place), window)


def _copied(node: GraphNode, view: View, lowering: Lowering) -> View:
    """The operand copied into the result's shape; what lies side by side stays so where that is its channels.

    A channel shuffle between convolutions (split, transpose, merge) keeps its images channels-last.
    """
    shape = node.outputs[0].shape
    strides = channels_last(shape) if _keeps_channels(view, shape) else row_major(shape)
    result = lowering.scratch(f"{value_key(node.args[0])[0]}_copy", shape, view.dtype, strides=strides)
    target = reshape(result, view.shape)
    assert target is not None, node
    if view.numel:
        lowering.copy(view, target.strides, node.name, target)
    return result


def _keeps_channels(view: View, shape: tuple[int, ...]) -> bool:
    """Whether the innermost dim in memory becomes a part of the channels of images [N, C, H, W]."""
    inner = innermost(view)
    if len(shape) != 4 or inner is None or not view.numel:
        return False
    before, behind = prod(view.shape[:inner]), prod(view.shape[inner + 1 :])
    if before < shape[0] or behind < prod(shape[2:]):
        return False
    # Images and pixels may be split as well; only strides can tell whether the result can show that.
    images = View(view.buffer, shape, channels_last(shape))
    return reshape(images, view.shape) is not None
