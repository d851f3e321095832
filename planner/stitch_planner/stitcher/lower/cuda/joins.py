"""cat and stack on GPUs: all operands in one launch."""

from collections.abc import Sequence
from math import prod

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.copies import layout_call
from stitch_planner.stitcher.lower.cuda.image_plan import ImagePlan, ImagePlans, join_operands, joins_channels
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.image_shapes import last, place, settle
from stitch_planner.stitcher.lower.kernel_ir import View
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import ConcatOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import Argument, GraphNode

MOST_OPERANDS = 64
"""Of one launch of concat.cuh."""
MOST_ELEMENTS = 2**31
_STACK = "aten.stack.default"
_OPS = frozenset(["aten.cat.default", "aten.concat.default", "aten.concatenate.default", _STACK])


class CudaConcat(LibraryTemplate):
    """cat and stack."""

    family = "layout"

    def __init__(self, plans: ImagePlans) -> None:
        self.plans = plans

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None where all operands have the result's type and rank."""
        if node.op not in _OPS:
            return NOT_MINE
        specs = [index.spec(key) for key in _keys(node.args[0])]
        result = node.outputs[0]
        if any(spec.dtype != result.dtype for spec in specs):
            return "joining tensors of different types has no template"
        rank = len(result.shape) - (node.op == _STACK)
        if any(len(spec.shape) != rank for spec in specs):
            return "joining tensors of different ranks has no template"
        return None if result.numel < MOST_ELEMENTS else "elements of joined tensors are counted in 31 bits"

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call for up to 64 operands, in channels-last order where operands that are images lie so.

        Channels of images are written to their place by what makes them, as far as it can.
        """
        node = nodes[0]
        plan = self.plans.of(lowering.index)
        if joins_channels(node) and (node.name, 0) in plan.orders:
            _fill(plan, node, lowering)
            return
        keys = [key for key in _keys(node.args[0]) if lowering.index.spec(key).numel]
        shape = node.outputs[0].shape
        dim = int(number(argument(node, 1, "dim", 0))) % len(shape)
        views = [lowering.view(key) for key in keys]
        images_last = (
            node.op != _STACK
            and len(shape) > 2
            and any(view.is_channels_last and not view.is_dense for view in views)
        )
        sources = [last(lowering, key) if images_last else lowering.dense(key) for key in keys]
        result = (node.name, 0)
        target = place(lowering, result, first=not images_last)
        # In the order of memory that all of them have: what lies outside the joined dim, and what inside.
        order = [0, *range(2, len(shape)), 1] if images_last else list(range(len(shape)))
        at = order.index(dim)
        outer = prod(shape[d] for d in order[:at])
        widths = [view.numel // max(outer, 1) for view in sources]
        begin, total = 0, prod(shape[d] for d in order[at:])
        for start in range(0, len(sources), MOST_OPERANDS):
            chunk = widths[start : start + MOST_OPERANDS]
            lowering.call(
                f"join_{node.name}",
                f"{site(node)}: {len(chunk)} tensors side by side",
                nodes,
                ConcatOp(
                    tuple(sources[start : start + MOST_OPERANDS]), tuple(chunk), target, outer, begin, total
                ),
            )
            begin += sum(chunk)
        settle(lowering, result, target)


def _fill(plan: ImagePlan, node: GraphNode, lowering: Lowering) -> None:
    """Copies those operands into the joined image that do not lie there yet: neighbours in one call."""
    result = (node.name, 0)
    whole = plan.joined(result, lowering)
    if result not in lowering.values:
        lowering.bind(result, whole)
    first = plan.is_first(result)
    run: list[View] = []
    channel, begin = 0, 0
    for key in join_operands(node):
        view, shape = lowering.view(key), lowering.index.shape(key)
        part = View(whole.buffer, shape, whole.strides, whole.offset + channel * whole.strides[1])
        there = part in (view, lowering.in_slices.get(key))
        fits = view.is_dense if first else view.is_channels_last
        if there or not fits or len(run) == MOST_OPERANDS:
            _join_run(run, begin, whole, node, lowering)
            run = []
        if not there and not fits:
            lowering.add(layout_call(lowering.unique(f"copy_{key[0]}"), view, part, key[0]))
        elif not there:
            begin = begin if run else channel
            run.append(view)
        lowering.in_slices[key] = part
        channel += shape[1]
    _join_run(run, begin, whole, node, lowering)
    settle(lowering, result, whole)


def _join_run(run: Sequence[View], channel: int, whole: View, node: GraphNode, lowering: Lowering) -> None:
    """Copies images that lie as the joined one to its channels from `channel` on."""
    if not run:
        return
    unit = whole.strides[1]  # a plane, or a channel of a pixel
    images, _, height, width = whole.shape
    area = 1 if unit > 1 else height * width
    widths = tuple(view.shape[1] * unit for view in run)
    total = whole.strides[0] // area
    operation = ConcatOp(tuple(run), widths, whole, images * area, channel * unit, total)
    lowering.call(f"join_{node.name}", f"{site(node)}: {len(run)} tensors side by side", (node,), operation)


def _keys(value: Argument) -> list[ValueKey]:
    assert isinstance(value, tuple)
    return [value_key(item) for item in value]
