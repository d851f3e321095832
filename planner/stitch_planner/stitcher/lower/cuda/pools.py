"""Pooling on GPUs along one, two or three dims; means of whole images are reductions, see elements."""

from collections.abc import Sequence
from typing import Literal

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.cuda.image_plan import ImagePlans
from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.image_shapes import last, place, settle, stays_first
from stitch_planner.stitcher.lower.kernel_ir import View
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import Triple, VolumePoolOp, VolumeWindow
from stitch_planner.stitcher.lower.reductions import is_global_average
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import Argument, GraphNode

_MAXIMA = {
    **{f"aten.max_pool{k}d.default": k for k in (1, 2, 3)},
    **{f"aten.max_pool{k}d_with_indices.default": k for k in (2, 3)},
}
_ADAPTIVE_MAXIMA = {f"aten.adaptive_max_pool{k}d.default": k for k in (1, 2, 3)}
_AVERAGES = {f"aten.avg_pool{k}d.default": k for k in (1, 2, 3)}
_ADAPTIVE_AVERAGES = {f"aten.adaptive_avg_pool{k}d.default": k for k in (1, 2, 3)}
_DIMS = {**_MAXIMA, **_ADAPTIVE_MAXIMA, **_AVERAGES, **_ADAPTIVE_AVERAGES}
"""The dims of an image that each works along."""
MOST_RESULTS = 2**31
"""pool.cuh counts results in 31 bits."""


class CudaPool(LibraryTemplate):
    """Max and average pooling, adaptive ones among them."""

    family = "pool"

    def __init__(self, plans: ImagePlans) -> None:
        self.plans = plans

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for batched fp32 images whose indices nobody asks for."""
        dims = _DIMS.get(node.op)
        if dims is None or is_global_average(node, index):
            return NOT_MINE
        result = node.outputs[0]
        if result.dtype != "float32":
            return "pooling is computed in float32 only"
        if len(result.shape) != dims + 2:
            return "only batched images have a pooling template"
        if result.numel >= MOST_RESULTS:
            return "results of pooling are counted in 31 bits"
        indices_used = index.users((node.name, 1)) or index.leaves((node.name, 1))
        return "indices of maxima have no template" if len(node.outputs) > 1 and indices_used else None

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call, in the order of memory that the operand has."""
        node = nodes[0]
        key = value_key(node.args[0])
        planned = self.plans.of(lowering.index).is_first((node.name, 0))
        first = planned or stays_first(node, lowering.view(key), lowering.index)
        source = lowering.dense(key) if first else last(lowering, key)
        target = place(lowering, (node.name, 0), first=first)
        kind: Literal["max", "average"] = "max" if "max" in node.op else "average"
        adaptive = node.op in _ADAPTIVE_MAXIMA or node.op in _ADAPTIVE_AVERAGES
        lowering.call(
            f"pool_{node.name}",
            f"{site(node)}: {'adaptive ' if adaptive else ''}{kind} pooling",
            (node,),
            VolumePoolOp(
                source=_volume(source),
                out=_volume(target),
                kind=kind,
                channels_last=not first,
                window=None if adaptive else _window(node, kind),
            ),
        )
        settle(lowering, (node.name, 0), target)


def _volume(view: View) -> View:
    """The window with dims of 1 put in before the image's own, so that it has a depth and a height."""
    missing = 5 - len(view.shape)
    shape = (*view.shape[:2], *(1,) * missing, *view.shape[2:])
    strides = (*view.strides[:2], *(0,) * missing, *view.strides[2:])
    return View(view.buffer, shape, strides, view.offset)


def _window(node: GraphNode, kind: str) -> VolumeWindow:
    dims = _DIMS[node.op]
    kernel = _triple(argument(node, 1, "kernel_size"), dims, 1)
    given = argument(node, 2, "stride")
    stride = kernel if given in (None, ()) else _triple(given, dims, 1)
    padding = _triple(argument(node, 3, "padding", 0), dims, 0)
    if kind == "max":
        dilation = _triple(argument(node, 4, "dilation", 1), dims, 1)
        return VolumeWindow(kernel, stride, padding, dilation=dilation)
    divisor = argument(node, 6, "divisor_override")
    return VolumeWindow(
        kernel,
        stride,
        padding,
        count_padding=argument(node, 5, "count_include_pad", True) is not False,
        divisor=None if divisor is None else int(number(divisor)),
    )


def _triple(value: Argument, dims: int, default: int) -> Triple:
    """A number for depth, height and width from one or several; `default` along dims that are not there."""
    given = value if isinstance(value, tuple) else (value,)
    numbers = [int(number(item)) for item in given if item is not None] or [default]
    numbers = numbers * dims if len(numbers) == 1 else numbers
    depth, height, width = [default] * (3 - dims) + numbers
    return depth, height, width
