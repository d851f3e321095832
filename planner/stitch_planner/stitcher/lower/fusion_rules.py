"""When nodes can share one kernel: the rules that the planner asks and the lowering relies on."""

from collections.abc import Mapping, Sequence
from typing import Literal

from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, references, value_key
from stitch_planner.stitcher.lower.reductions import (
    REDUCTIONS,
    ReductionFrame,
    pointwise_frame,
    reduction_frame,
)
from stitch_planner.stitcher.lower.scalars import EXPRESSIONS
from stitch_tools.models.graph import GraphNode

Spread = Literal["element", "row"]
"""Whether a value of a fused group has one element for each point of the space or for each row."""

RESHAPES = frozenset(
    f"aten.{name}"
    for name in (
        "unsqueeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "squeeze.default",
        "view.default",
        "reshape.default",
        "expand.default",
        "expand_as.default",
    )
)
"""Views that a per-row value may pass through inside a kernel."""


def group_frame(nodes: Sequence[GraphNode], index: GraphIndex) -> ReductionFrame | None:
    """The space that all `nodes` share; None when their reductions differ."""
    frames = {reduction_frame(node, index) for node in nodes if node.op in REDUCTIONS}
    # Two reductions over different dims are two loops; one kernel has one.
    if len(frames) > 1:
        return None
    if frames:
        return frames.pop()
    return pointwise_frame(nodes[-1].outputs[0].shape)


def classify(nodes: Sequence[GraphNode], index: GraphIndex) -> Mapping[ValueKey, Spread] | None:
    """How each node's value spreads, if one kernel can compute all `nodes` (in order); else None."""
    frame = group_frame(nodes, index)
    if frame is None:
        return None
    spreads: dict[ValueKey, Spread] = {}
    for node in nodes:
        spread = _spread(node, frame, spreads, index)
        if spread is None:
            return None
        spreads[node.name, 0] = spread
    return spreads


def _spread(
    node: GraphNode, frame: ReductionFrame, spreads: Mapping[ValueKey, Spread], index: GraphIndex
) -> Spread | None:
    inside = [key for key in references(node) if key in spreads]
    if node.op in REDUCTIONS:
        return _spread_of_reduction(node, inside, spreads)
    shape = node.outputs[0].shape
    if node.op in EXPRESSIONS:
        return _spread_of_expression(shape, inside, frame, spreads, index)
    if node.op in RESHAPES and inside and frame.reduced and frame.shape == frame.full:
        small = all(spreads[key] == "row" for key in inside)
        return "row" if small and shape in (frame.kept_shape, frame.outer_shape) else None
    return None


def _spread_of_reduction(
    node: GraphNode, inside: list[ValueKey], spreads: Mapping[ValueKey, Spread]
) -> Spread | None:
    operand = value_key(node.args[0])
    # A reduction of a value that is one a row already would run over a dim that is not there.
    if any(key != operand or spreads[key] != "element" for key in inside):
        return None
    return "row" if REDUCTIONS[node.op].per_row else "element"


def _spread_of_expression(
    shape: tuple[int, ...],
    inside: list[ValueKey],
    frame: ReductionFrame,
    spreads: Mapping[ValueKey, Spread],
    index: GraphIndex,
) -> Spread | None:
    if shape == frame.full:
        # x - x.sum(1) broadcasts along another dim than it was reduced over: only keepdim alignment may be
        # fused.
        return "element" if all(_lies_over(key, frame, spreads, index) for key in inside) else None
    if not inside or not frame.reduced or frame.shape != frame.full:
        return None
    if shape not in (frame.kept_shape, frame.outer_shape):
        return None
    return "row" if all(spreads[key] == "row" and index.shape(key) == shape for key in inside) else None


def _lies_over(
    key: ValueKey, frame: ReductionFrame, spreads: Mapping[ValueKey, Spread], index: GraphIndex
) -> bool:
    """Whether broadcasting an inner value over the full space keeps each element at its own point."""
    shape = index.shape(key)
    if spreads[key] == "element":
        return shape == frame.full
    return _pad(shape, frame.full) == frame.kept_shape


def _pad(shape: tuple[int, ...], like: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (len(like) - len(shape)) + shape
