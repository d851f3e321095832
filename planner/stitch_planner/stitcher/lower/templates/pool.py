"""Pooling and resizing of images, in the order of memory that the operand has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
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
from stitch_planner.stitcher.lower.kernel_ir import View
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import PoolOp, PoolWindow, ResizeOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import GraphNode


@dataclass(frozen=True)
class _Images:
    """One call's operand and result, and which order both have."""

    source: View
    written: View
    first: bool


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
        lowering.call(
            f"pool_{node.name}",
            f"{site(node)}: {kind.replace('_', ' ')} pooling",
            (node,),
            PoolOp(
                source=images.source,
                out=as_2d(images.written),
                kind="max" if kind.endswith("max") else "average",
                channels_last=not images.first,
                window=None if kind.startswith("adaptive") else _window(node, largest=kind == "max"),
            ),
        )
        settle(lowering, (node.name, 0), images.written)


def _window(node: GraphNode, *, largest: bool) -> PoolWindow:
    both = line if "1d" in node.op else pair
    kernel = both(argument(node, 1, "kernel_size"), 1)
    given = argument(node, 2, "stride")
    stride = kernel if given in (None, ()) else both(given, 1)
    padding = both(argument(node, 3, "padding", 0), 0)
    if largest:
        return PoolWindow(kernel, stride, padding, dilation=both(argument(node, 4, "dilation", 1), 1))
    divisor = argument(node, 6, "divisor_override")
    return PoolWindow(
        kernel,
        stride,
        padding,
        count_padding=argument(node, 5, "count_include_pad", True) is not False,
        divisor=None if divisor is None else int(number(divisor)),
    )


_RESIZES: dict[str, Literal["nearest", "bilinear"]] = {
    "aten.upsample_nearest2d.vec": "nearest",
    "aten.upsample_nearest2d.default": "nearest",
    "aten.upsample_bilinear2d.vec": "bilinear",
    "aten.upsample_bilinear2d.default": "bilinear",
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
        corners = kind == "bilinear" and argument(node, 2, "align_corners") is True
        lowering.call(
            f"resize_{node.name}",
            f"{site(node)}: {kind} resizing",
            (node,),
            ResizeOp(
                source=images.source,
                out=as_2d(images.written),
                kind=kind,
                channels_last=not images.first,
                scale=_scales(node, kind),
                align_corners=corners,
            ),
        )
        settle(lowering, (node.name, 0), images.written)


def _scales(node: GraphNode, kind: str) -> tuple[float, ...]:
    """The caller's scale factors; 0 where the ratio of sizes counts."""
    at = 2 if kind == "nearest" else 3
    if node.op.endswith(".vec"):
        factors = argument(node, at, "scale_factors")
        values = factors if isinstance(factors, tuple) else (0.0, 0.0)
    else:
        values = (argument(node, at, "scales_h"), argument(node, at + 1, "scales_w"))
    return tuple(float(number(value)) if value is not None else 0.0 for value in values)
