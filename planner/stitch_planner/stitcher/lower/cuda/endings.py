"""Element-wise operations behind a convolution of volumes, which its call takes in: results are large."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from stitch_planner.stitcher.lower.kernel_ir import (
    Access,
    Buffer,
    LibraryCall,
    PointwiseKernel,
    View,
    kernel_reads,
    kernel_writes,
    row_major,
)
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import VolumeConvOp
from stitch_planner.stitcher.lower.templates.elements import Elements
from stitch_tools.models.graph import GraphNode


class CudaElements(Elements):
    """Expressions and reductions; expressions become the end of a convolution of volumes where they can."""

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One kernel for the whole group, or none."""
        count = len(lowering.kernels)
        super().lower(nodes, lowering)
        if len(lowering.kernels) == count + 1:
            _join(nodes, lowering)


def _join(nodes: Sequence[GraphNode], lowering: Lowering) -> None:
    """Takes the last kernel into the convolution whose result it reads, if nothing else does."""
    kernel = lowering.kernels[-1]
    if not isinstance(kernel, PointwiseKernel) or not _writes_densely(kernel):
        return
    inside = {node.name for node in nodes}
    for place, call in enumerate(lowering.kernels[:-1]):
        operation = call.operation if isinstance(call, LibraryCall) else None
        if not isinstance(operation, VolumeConvOp) or operation.ending is not None:
            continue
        assert isinstance(call, LibraryCall)
        key = (call.nodes[-1], 0)
        users = {user.name for user in lowering.index.users(key)}
        if lowering.index.leaves(key) or not users <= inside or not _reads_densely(kernel, operation.out):
            continue
        others = list(dict.fromkeys(a.buffer for a in kernel.loads if a.buffer != operation.out.buffer))
        shape, (store,) = operation.out.shape, kernel.stores
        # What it reads must be there by then, and what it writes not be wanted as it was.
        passed = lowering.kernels[place:-1]
        written = {buffer for other in passed for buffer in kernel_writes(other)}
        touched = written.union(*map(kernel_reads, passed))
        if not written.isdisjoint(others) or store.buffer in touched:
            continue
        lowering.kernels[place] = replace(
            call,
            comment=f"{call.comment}; {kernel.comment}",
            nodes=call.nodes + kernel.nodes,
            operation=replace(
                operation,
                out=View(store.buffer, shape, row_major(shape), store.offset),
                ending=kernel,
                ending_source=operation.out.buffer,
                ending_reads=tuple(_whole(buffer) for buffer in others),
            ),
        )
        del lowering.kernels[-1]
        return


def _writes_densely(kernel: PointwiseKernel) -> bool:
    """Whether the kernel makes one float32 tensor, element after element."""
    if len(kernel.stores) != 1 or kernel.stores[0].buffer.dtype != "float32":
        return False
    return _is_dense(kernel, kernel.stores[0])


def _reads_densely(kernel: PointwiseKernel, result: View) -> bool:
    """Whether the kernel reads the result, once and as it lies."""
    loads = [access for access in kernel.loads if access.buffer == result.buffer]
    whole = len(loads) == 1 and loads[0].offset == result.offset and prod(kernel.space) == result.numel
    return whole and _is_dense(kernel, loads[0])


def _is_dense(kernel: PointwiseKernel, access: Access) -> bool:
    dense = row_major(kernel.space)
    return all(
        size == 1 or step == wanted
        for size, step, wanted in zip(kernel.space, access.strides, dense, strict=True)
    )


def _whole(buffer: Buffer) -> View:
    return View(buffer, (buffer.numel,), (1,))
