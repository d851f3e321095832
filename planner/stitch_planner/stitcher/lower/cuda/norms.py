"""Normalisation by an image's own statistics on GPUs, in the orders of memory that the headers can take."""

from collections.abc import Sequence
from dataclasses import fields, replace
from math import prod

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.cuda.image_plan import slice_step
from stitch_planner.stitcher.lower.cuda.norm_choice import joins_elements
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.image_shapes import is_fp32, last, place, settle
from stitch_planner.stitcher.lower.kernel_ir import LibraryCall, View
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import BatchNormOp, GroupNormOp, NormPairOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.lower.templates.batch_norm import (
    BatchNorm,
    absorbs_tail,
    activation_text,
    tail_of,
)
from stitch_planner.stitcher.lower.views import reshape
from stitch_tools.models.graph import GraphNode

LARGEST_TILE = 128
"""Channels that one block of pixel_norm.cuh takes at most."""
FEW_ROWS = 132
"""At most: beyond it, a block for each row fills the GPU."""
LONG_ROW = 2**15
"""Elements that no longer fit the registers of a block."""
MOST_ELEMENTS = 2**31
"""The headers count the elements of a tensor in 31 bits."""
KEPT_PIXELS = {False: 2**15, True: 2**9}
"""Of a channel, by whether channels are last: so many fit a kernel that reads memory once."""
_GROUP, _INSTANCE = "aten.group_norm.default", "aten.instance_norm.default"


class CudaBatchNorm(BatchNorm):
    """batch_norm in training mode."""

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """As the base class, and not for tensors whose elements take more than 31 bits to count."""
        refusal = super().refuses(node, index)
        too_large = node.outputs[0].numel >= MOST_ELEMENTS
        return "images are counted in 31 bits" if refusal is None and too_large else refusal

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call; together with the norm that made the residual, if that is worth it."""
        super().lower(nodes, lowering)
        residual, _, _ = tail_of(nodes, lowering.index)
        if residual is not None and _is_read_once(residual, lowering.index):
            _pair(nodes, lowering)

    def source(self, key: ValueKey, lowering: Lowering) -> tuple[View, bool]:
        """As the base class; a slice of a wider image's channels is read where it lies."""
        view = lowering.view(key)
        if not view.is_dense and not view.is_channels_last:
            for first in (True, False):
                if slice_step(view, first=first) is not None:
                    return view, first
        return super().source(key, lowering)


class CudaImageNorm(LibraryTemplate):
    """group_norm and instance_norm of [N, C, ...], with a residual and an activation behind them."""

    family = "group_norm"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for fp32 images that are normalised by their own statistics."""
        if node.op not in (_GROUP, _INSTANCE) or len(node.outputs[0].shape) < 3:
            return NOT_MINE
        if node.op == _INSTANCE and argument(node, 5, "use_input_stats") is False:
            return NOT_MINE
        if not is_fp32(node, index):
            return "statistics of images are computed in float32 only"
        if joins_elements(node, index):
            return NOT_MINE
        return None if node.outputs[0].numel < MOST_ELEMENTS else "images are counted in 31 bits"

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """A residual, then an activation."""
        return absorbs_tail(nodes, candidate, index)

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call, in the order of memory that the operand has."""
        node = nodes[0]
        key = value_key(node.args[0])
        residual, activation, slope = tail_of(nodes, lowering.index)
        shape = node.outputs[0].shape
        groups, weight, bias, eps = _numbers(node)
        view = lowering.view(key)
        first = view.is_dense or not fits_tile(shape[1], shape[1] // groups)
        result = (nodes[-1].name, 0)
        source = lowering.dense(key) if first else last(lowering, key)
        target = place(lowering, result, first=first)
        more = None
        if residual is not None:
            more = lowering.dense(residual) if first else last(lowering, residual)
        lowering.call(
            f"norm_{node.name}",
            f"{site(node)}: {groups} groups of {shape[1]} channels"
            f"{', residual' if more else ''}{activation_text(activation)}",
            nodes,
            GroupNormOp(
                source=source,
                weight=None if weight is None else lowering.dense(weight),
                bias=None if bias is None else lowering.dense(bias),
                residual=more,
                out=target,
                channels_last=not first,
                area=node.outputs[0].numel // (shape[0] * shape[1]),
                groups=groups,
                eps=eps,
                activation=activation,
                slope=slope,
            ),
        )
        settle(lowering, result, target)


class CudaLongRowNorm(LibraryTemplate):
    """layer_norm of rows that are too few and too long for one block each."""

    family = "group_norm"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for few long rows; all others are fused with what surrounds them."""
        if node.op != "aten.layer_norm.default":
            return NOT_MINE
        rows, length = _rows(node)
        if rows > FEW_ROWS or length < LONG_ROW or node.outputs[0].numel >= MOST_ELEMENTS:
            return NOT_MINE
        return None if is_fp32(node, index) else NOT_MINE

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call: a row is an image of one group, whose channels are its elements."""
        node = nodes[0]
        source = lowering.dense(value_key(node.args[0]))
        target = lowering.new((node.name, 0))
        rows, length = _rows(node)
        flat = reshape(source, (rows, length)), reshape(target, (rows, length))
        assert flat[0] is not None, "dense"
        assert flat[1] is not None, "dense"
        lowering.call(
            f"norm_{node.name}",
            f"{site(node)}: {rows} rows of {length}",
            nodes,
            GroupNormOp(
                source=flat[0],
                weight=lowering.dense_or_none(argument(node, 2, "weight")),
                bias=lowering.dense_or_none(argument(node, 3, "bias")),
                residual=None,
                out=flat[1],
                channels_last=False,
                area=1,
                groups=1,
                eps=float(number(argument(node, 4, "eps", 1e-5))),
                activation="none",
                slope=0.0,
            ),
        )


def _rows(node: GraphNode) -> tuple[int, int]:
    """How many rows a layer_norm has, and how long they are."""
    shape, normal = node.outputs[0].shape, node.args[1]
    assert isinstance(normal, tuple)
    kept = len(shape) - len(normal)
    return prod(shape[:kept]), prod(shape[kept:])


def _is_read_once(key: ValueKey, index: GraphIndex) -> bool:
    return len(index.users(key)) == 1 and not index.leaves(key)


def _pair(nodes: Sequence[GraphNode], lowering: Lowering) -> None:
    """Takes the norm that makes the residual into the call of `nodes`, where images are large."""
    names = tuple(node.name for node in nodes)
    calls = [(at, k) for at, k in enumerate(lowering.kernels) if isinstance(k, LibraryCall)]
    place, call = next((at, k) for at, k in reversed(calls) if k.nodes == names)
    op = call.operation
    assert isinstance(op, BatchNormOp)
    many = op.source.shape[0] * op.area > KEPT_PIXELS[op.channels_last]
    for at, kernel in calls:
        other = kernel.operation
        if (
            not many
            or type(other) is not BatchNormOp
            or other.out != op.residual
            or other.residual is not None
        ):
            continue
        if other.channels_last != op.channels_last:
            continue
        facts = {field.name: getattr(op, field.name) for field in fields(op)}
        facts["residual"] = other.source
        pair = NormPairOp(
            **facts,
            other_weight=other.weight,
            other_bias=other.bias,
            other_eps=other.eps,
            other_activation=other.activation,
            other_slope=other.slope,
        )
        comment = f"{call.comment}; {kernel.comment}"
        lowering.kernels[place] = replace(call, comment=comment, nodes=kernel.nodes + names, operation=pair)
        del lowering.kernels[at]
        return


def fits_tile(channels: int, group_size: int) -> bool:
    """Whether whole groups of channels fill tiles of a power of two of them."""
    is_power = group_size & (group_size - 1) == 0
    return channels <= LARGEST_TILE or (is_power and group_size <= LARGEST_TILE)


def _numbers(
    node: GraphNode,
) -> tuple[int, tuple[str, int] | None, tuple[str, int] | None, float]:
    """Groups, weight, bias and eps."""
    grouped = node.op == _GROUP
    first = 2 if grouped else 1
    weight, bias = argument(node, first, "weight"), argument(node, first + 1, "bias")
    groups = int(number(node.args[1])) if grouped else node.outputs[0].shape[1]
    eps = float(number(argument(node, 4 if grouped else 7, "eps", 1e-5)))
    return (
        groups,
        None if weight is None else value_key(weight),
        None if bias is None else value_key(bias),
        eps,
    )
