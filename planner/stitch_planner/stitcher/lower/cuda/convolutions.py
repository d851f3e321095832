"""Convolutions on GPUs: cuDNN in channels-last order, and a kernel of our own for depthwise ones."""

from collections.abc import Sequence

from stitch_planner.stitcher.lower.epilogue import residual_of
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey
from stitch_planner.stitcher.lower.image_shapes import as_2d
from stitch_planner.stitcher.lower.kernel_ir import LibraryCall, View, channels_last
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import StridedCopyOp
from stitch_planner.stitcher.lower.templates.conv import Conv, ConvShape
from stitch_tools.models.graph import GraphNode

ALIGNED_ELEMENTS = 4
"""float32 elements in the 16 bytes that tensor cores and our own kernels read at once."""
FEWEST_CHANNELS = 8
"""Below these, a transposed copy of the image has rows too short for tiles; the call turns it itself."""


class CudaConv(Conv):
    """conv1d, conv2d and their transposes."""

    def __init__(self, *, allow_tf32: bool = False) -> None:
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

    def source(self, key: ValueKey, shape: ConvShape, lowering: Lowering) -> View:
        """The image as it lies where the call turns it itself; else in channels-last order."""
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
