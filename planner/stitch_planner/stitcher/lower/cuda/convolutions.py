"""Convolutions on GPUs: cuDNN in channels-last order, and a kernel of our own for depthwise ones."""

from collections.abc import Sequence

from stitch_planner.stitcher.lower.cuda.image_plan import (
    ALIGNED_ELEMENTS,
    FEWEST_CHANNELS,
    ImagePlans,
    planar_kind,
)
from stitch_planner.stitcher.lower.epilogue import residual_of
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey
from stitch_planner.stitcher.lower.image_shapes import as_2d, place
from stitch_planner.stitcher.lower.kernel_ir import LibraryCall, View, channels_last
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import StridedCopyOp
from stitch_planner.stitcher.lower.templates.conv import Conv, ConvShape
from stitch_tools.models.graph import GraphNode


class CudaConv(Conv):
    """conv1d, conv2d and their transposes."""

    def __init__(self, plans: ImagePlans, *, allow_tf32: bool = False) -> None:
        self.plans = plans
        self.allow_tf32 = allow_tf32

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """A constant normalisation directly behind it, then one residual of its shape, then a ReLU.

        Other activations stay in a kernel of their own: cuDNN's call has none of them.
        """
        if candidate.op == "aten.batch_norm.default":
            return super().absorbs(nodes, candidate, index)
        before = nodes[-1].op
        if before == "aten.relu.default" or candidate.outputs[0].dtype != "float32":
            return False
        if candidate.op == "aten.relu.default":
            return True
        inside = {node.name for node in nodes}
        residual = residual_of(candidate, inside, index)
        return before != "aten.add.Tensor" and residual is not None

    def is_planar(self, node: GraphNode, lowering: Lowering) -> bool:
        """Where the graph's images are better kept so, and there is a kernel for it."""
        index = lowering.index
        return self.plans.of(index).is_first((node.name, 0)) and planar_kind(node, index) is not None

    def target(self, key: ValueKey, lowering: Lowering, *, planar: bool) -> View:
        """The slice of the image that the result is joined to, or an image of its own."""
        # cuDNN writes dense images only; the join copies them.
        part = self.plans.of(lowering.index).target(key, lowering) if planar else None
        if part is None:
            return place(lowering, key, first=planar)
        lowering.bind(key, part)
        return part

    def source(self, key: ValueKey, shape: ConvShape, lowering: Lowering, *, planar: bool) -> View:
        """The image as it lies where the call turns it itself; else in the order that it reads."""
        if planar:
            view = lowering.dense(key)
            return view if _is_aligned(view) else lowering.copy(view, view.strides, key[0])
        view = as_2d(lowering.view(key))
        turned = (
            view.is_dense
            and not view.is_channels_last
            and view.shape[1] < FEWEST_CHANNELS
            and shape.groups == 1
            and not shape.transposed
        )
        return view if turned and _is_aligned(view) else self.operand(key, lowering)

    def operand(self, key: ValueKey, lowering: Lowering) -> View:
        """The value in channels-last order, at an address that may be read in groups of 16 bytes."""
        view = lowering.view(key)
        if view.is_channels_last and _is_aligned(view):
            return as_2d(view)
        strides = channels_last(view.shape)
        # Several convolutions read one image (the branches of an inception module): it is copied once.
        for kernel in lowering.kernels:
            op = kernel.operation if isinstance(kernel, LibraryCall) else None
            if isinstance(op, StridedCopyOp) and op.source == view and op.out.strides == strides:
                return as_2d(op.out)
        return as_2d(lowering.copy(view, strides, key[0]))


def _is_aligned(view: View) -> bool:
    return view.offset % ALIGNED_ELEMENTS == 0
