"""Pooling and resizing of images, in the order of memory that the operand has."""

from collections.abc import Sequence
from dataclasses import dataclass

from stitch_planner.stitcher.emit.call_text import braced, flag, site
from stitch_planner.stitcher.graph.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.image_shapes import (
    as_2d,
    is_fp32,
    last,
    line,
    pair,
    place,
    settle,
    stays_first,
)
from stitch_planner.stitcher.lower.kernel_ir import LibraryCall, Pointer, View
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import GraphNode


@dataclass(frozen=True)
class _Images:
    """One call's operand and result, and which order both have."""

    source: View
    written: View
    first: bool

    @property
    def sizes(self) -> str:
        """The fields of an options struct that all families share."""
        n, c, h, w = self.source.shape
        output = braced(as_2d(self.written).shape[2:])
        return f".images = {n}, .channels = {c}, .input = {braced((h, w))}, .output = {output}"

    @property
    def arguments(self) -> tuple[Pointer | str, ...]:
        """Arguments of run."""
        return Pointer(self.source), Pointer(self.written, write=True), "threads"


def _images(node: GraphNode, lowering: Lowering) -> _Images:
    key = value_key(node.args[0])
    view = lowering.view(key)
    first = stays_first(node, view, lowering.index)
    source = view if first else last(lowering, key)
    target = place(lowering, (node.name, 0), first=first)
    return _Images(as_2d(source), target, first)


_POOLS = {
    "aten.max_pool1d.default": "max",
    "aten.max_pool2d.default": "max",
    "aten.max_pool2d_with_indices.default": "max",
    "aten.avg_pool1d.default": "average",
    "aten.avg_pool2d.default": "average",
    "aten.adaptive_avg_pool1d.default": "adaptive_average",
    "aten.adaptive_avg_pool2d.default": "adaptive_average",
    "aten.adaptive_max_pool1d.default": "adaptive_max",
    "aten.adaptive_max_pool2d.default": "adaptive_max",
}


class Pool(LibraryTemplate):
    """Max and average pooling, adaptive and global ones among them."""

    family = "pool"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for batched fp32 images whose indices nobody asks for."""
        if node.op not in _POOLS:
            return NOT_MINE
        if node.outputs[0].dtype != "float32":
            return "pooling is computed in float32 only"
        if len(node.outputs[0].shape) != (3 if "1d" in node.op else 4):
            return "only batched images have a pooling template"
        indices_used = index.users((node.name, 1)) or index.leaves((node.name, 1))
        return "indices of maxima have no template" if len(node.outputs) > 1 and indices_used else None

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        node = nodes[0]
        kind = _POOLS[node.op]
        images = _images(node, lowering)
        largest = kind.endswith("max")
        lowering.add(
            LibraryCall(
                lowering.unique(f"pool_{node.name}"),
                f"{site(node)}: {kind.replace('_', ' ')} pooling",
                (node.name,),
                "stitch/cpu/pool.h",
                f"stitch::cpu::Pool<stitch::cpu::Pooling::{'kMax' if largest else 'kAverage'}, "
                f"{flag(not images.first)}>",
                (f"{{{images.sizes}{_window(node, kind)}}}",),
                images.arguments,
                chosen="channels are vectorised" if not images.first else "columns are vectorised",
            )
        )
        settle(lowering, (node.name, 0), images.written)


def _window(node: GraphNode, kind: str) -> str:
    """The fields of PoolOptions that say how windows lie."""
    if kind.startswith("adaptive"):
        return ", .adaptive = true"
    both = line if "1d" in node.op else pair
    kernel = both(argument(node, 1, "kernel_size"), 1)
    given = argument(node, 2, "stride")
    stride = kernel if given in (None, ()) else both(given, 1)
    padding = both(argument(node, 3, "padding", 0), 0)
    text = f", .kernel = {braced(kernel)}, .stride = {braced(stride)}, .padding = {braced(padding)}"
    if kind == "max":
        return f"{text}, .dilation = {braced(both(argument(node, 4, 'dilation', 1), 1))}"
    counts = argument(node, 5, "count_include_pad", True) is not False
    divisor = argument(node, 6, "divisor_override")
    text += f", .count_padding = {flag(counts)}"
    return text if divisor is None else f"{text}, .divisor = {int(number(divisor))}"


_RESIZES = {
    "aten.upsample_nearest2d.vec": "kNearest",
    "aten.upsample_nearest2d.default": "kNearest",
    "aten.upsample_bilinear2d.vec": "kBilinear",
    "aten.upsample_bilinear2d.default": "kBilinear",
}


class Upsample(LibraryTemplate):
    """Nearest-neighbour and bilinear resizing."""

    family = "upsample"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for fp32 images."""
        if node.op not in _RESIZES:
            return NOT_MINE
        return None if is_fp32(node, index) else "resizing is computed in float32 only"

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        node = nodes[0]
        kind = _RESIZES[node.op]
        images = _images(node, lowering)
        corners = kind == "kBilinear" and argument(node, 2, "align_corners") is True
        lowering.add(
            LibraryCall(
                lowering.unique(f"resize_{node.name}"),
                f"{site(node)}: {kind[1:].lower()} resizing",
                (node.name,),
                "stitch/cpu/upsample.h",
                f"stitch::cpu::Upsample<stitch::cpu::Resize::{kind}, {flag(not images.first)}>",
                (f"{{{images.sizes}, .scale = {_scales(node, kind)}, .align_corners = {flag(corners)}}}",),
                images.arguments,
                chosen="source places computed once",
            )
        )
        settle(lowering, (node.name, 0), images.written)


def _scales(node: GraphNode, kind: str) -> str:
    """The caller's scale factors; 0 where the ratio of sizes counts."""
    at = 2 if kind == "kNearest" else 3
    if node.op.endswith(".vec"):
        factors = argument(node, at, "scale_factors")
        values = factors if isinstance(factors, tuple) else (0.0, 0.0)
    else:
        values = (argument(node, at, "scales_h"), argument(node, at + 1, "scales_w"))
    return "{" + ", ".join(repr(float(number(value)) if value is not None else 0.0) for value in values) + "}"
