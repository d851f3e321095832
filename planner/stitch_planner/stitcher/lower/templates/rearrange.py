"""Rearrangements that no window can express: pixel shuffling, padding, flips, rolls and triangles."""

from collections.abc import Sequence

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.kernel_ir import (
    Access,
    Body,
    Instr,
    PointwiseKernel,
    View,
    channels_last,
    row_major,
)
from stitch_planner.stitcher.lower.lowering import Lowering, copy_kernel
from stitch_planner.stitcher.lower.scalar_bodies import BodyBuilder
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.lower.views import permute, reshape, slice_dim
from stitch_tools.models.graph import GraphNode

_SHUFFLES = {"aten.pixel_shuffle.default": False, "aten.pixel_unshuffle.default": True}
_PADS = frozenset(["aten.pad.default", "aten.constant_pad_nd.default"])


class PixelShuffle(LibraryTemplate):
    """pixel_shuffle and its inverse: one copy between two windows of six dims."""

    family = "layout"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for batches of images."""
        if node.op not in _SHUFFLES:
            return NOT_MINE
        return None if len(node.outputs[0].shape) == 4 else "only batched images have a shuffling template"

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One copy; a channels-last image stays one."""
        node = nodes[0]
        factor = int(number(node.args[1]))
        view = lowering.view(value_key(node.args[0]))
        images_last = view.is_channels_last and not view.is_dense
        strides = channels_last(node.outputs[0].shape) if images_last else None
        target = lowering.new((node.name, 0), strides=strides)
        # The side with many channels is [N, C, f, f, H, W], the one with many pixels [N, C, H, f, W, f].
        deep, wide = (target, view) if _SHUFFLES[node.op] else (view, target)
        n, channels, height, width = wide.shape
        height, width = height // factor, width // factor
        split = reshape(deep, (n, channels, factor, factor, height, width))
        pixels = reshape(wide, (n, channels, height, factor, width, factor))
        assert split is not None
        assert pixels is not None
        moved = permute(split, (0, 1, 4, 2, 5, 3))
        source, goal = (pixels, moved) if _SHUFFLES[node.op] else (moved, pixels)
        lowering.copy(source, goal.strides, node.name, target=goal)


class Pad(LibraryTemplate):
    """Padding with a constant, and cutting by negative amounts."""

    family = "layout"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for constant padding."""
        if node.op not in _PADS:
            return NOT_MINE
        constant = node.op != "aten.pad.default" or argument(node, 2, "mode", "constant") == "constant"
        return None if constant else "only constant padding has a template"

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """A fill of the result and a copy into its middle."""
        node = nodes[0]
        view = lowering.view(value_key(node.args[0]))
        shape = node.outputs[0].shape
        last = view.is_channels_last and not view.is_dense
        target = lowering.new((node.name, 0), strides=channels_last(shape) if last else None)
        if target.numel:
            lowering.add(_fill(lowering, node, target))
        amounts = node.args[1]
        assert isinstance(amounts, tuple)
        middle = target
        for place in range(0, len(amounts), 2):  # pairs count from the last dim backwards
            dim = len(shape) - 1 - place // 2
            low, high = (int(number(item)) for item in amounts[place : place + 2])
            kept = view.shape[dim] + min(low, 0) + min(high, 0)
            view = slice_dim(view, dim, max(-low, 0), kept)
            middle = slice_dim(middle, dim, max(low, 0), kept)
        if view.numel:
            lowering.copy(view, middle.strides, node.name, target=middle)


class Flip(LibraryTemplate):
    """flip: a copy that walks backwards."""

    family = "layout"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for flip."""
        return None if node.op == "aten.flip.default" else NOT_MINE

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One copy, in the order of memory that the operand has."""
        node = nodes[0]
        view = lowering.view(value_key(node.args[0]))
        last = view.is_channels_last and not view.is_dense
        target = lowering.new((node.name, 0), strides=channels_last(view.shape) if last else None)
        strides, offset = list(view.strides), view.offset
        assert isinstance(node.args[1], tuple)
        for dim in {int(number(item)) % len(view.shape) for item in node.args[1]}:
            offset += (view.shape[dim] - 1) * strides[dim]
            strides[dim] = -strides[dim]
        turned = View(view.buffer, view.shape, tuple(strides), offset)
        # The target's own copies (tiles, say) count on strides that are not negative.
        lowering.add(copy_kernel(lowering.unique(f"flip_{node.name}"), turned, target, node.name))


class Roll(LibraryTemplate):
    """roll: the parts on both sides of each cut change places."""

    family = "layout"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for shifts along dims that are named."""
        if node.op != "aten.roll.default":
            return NOT_MINE
        return (
            None if argument(node, 2, "dims") not in (None, ()) else "roll of the flat tensor has no template"
        )

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """A copy for each part: two of them for each dim that is shifted."""
        node = nodes[0]
        view = lowering.view(value_key(node.args[0]))
        last = view.is_channels_last and not view.is_dense
        target = lowering.new((node.name, 0), strides=channels_last(view.shape) if last else None)
        parts = [(view, target)]
        for dim, shift in _shifts(node, len(view.shape)).items():
            size = view.shape[dim]
            ahead = shift % max(size, 1)
            cuts = ((0, ahead, size - ahead), (size - ahead, 0, ahead))
            parts = [
                (slice_dim(source, dim, begin, length), slice_dim(goal, dim, to, length))
                for source, goal in parts
                for begin, to, length in cuts
                if length
            ]
        for source, goal in parts:
            lowering.copy(source, goal.strides, node.name, target=goal)


def _shifts(node: GraphNode, rank: int) -> dict[int, int]:
    """How far each dim is shifted; a dim may be named twice."""
    shifts, dims = node.args[1], argument(node, 2, "dims")
    assert isinstance(shifts, tuple)
    assert isinstance(dims, tuple)
    result: dict[int, int] = {}
    for dim, shift in zip(dims, shifts, strict=True):
        at = int(number(dim)) % rank
        result[at] = result.get(at, 0) + int(number(shift))
    return result


_TRIANGLES = {"aten.triu.default": "ge", "aten.tril.default": "le"}
"""How column - row compares with the diagonal where an element stays."""


class Triangle(LibraryTemplate):
    """triu and tril."""

    family = "layout"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for triu and tril."""
        return None if node.op in _TRIANGLES else NOT_MINE

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One copy that leaves zeros on one side of the diagonal."""
        node = nodes[0]
        view = lowering.dense(value_key(node.args[0]))
        target = lowering.new((node.name, 0))
        rows, columns = view.shape[-2:]
        space = (view.numel // (rows * columns), rows, columns)
        b = BodyBuilder()
        value = b.load(Access(view.buffer, row_major(space), view.offset))
        place = b.sub(b.index(2), b.index(1))
        diagonal = b.const(int(number(argument(node, 1, "diagonal", 0))), "int32")
        stays = b.op(_TRIANGLES[node.op], (place, diagonal), "bool")
        result = b.op("where", (stays, value, b.const(0, target.dtype)), target.dtype)
        lowering.add(
            PointwiseKernel(
                lowering.unique(f"k_{node.name}"),
                f"{site(node)}: zeros on one side of the diagonal",
                (node.name,),
                space,
                tuple(b.loads),
                Body(tuple(b.instrs), (result,)),
                (Access(target.buffer, row_major(space), target.offset),),
            )
        )


def _fill(lowering: Lowering, node: GraphNode, target: View) -> PointwiseKernel:
    at = 3 if node.op == "aten.pad.default" else 2
    given = argument(node, at, "value")
    value = 0.0 if given is None else float(number(given))
    dtype = target.dtype
    constant = repr(value) if dtype.startswith("float") else bool(value) if dtype == "bool" else int(value)
    return PointwiseKernel(
        lowering.unique(f"fill_{node.name}"),
        f"{site(node)}: the padding's value everywhere",
        (node.name,),
        (target.numel,),
        (),
        Body((Instr("const", (), dtype, constant),), (0,)),
        (Access(target.buffer, (1,), target.offset),),
    )
