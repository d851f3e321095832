"""What a forward leaves in its inputs: written at the end, or where it is made if nothing is in the way."""

from stitch_planner.stitcher.graph.simplify import writes_unseen, written_inputs
from stitch_planner.stitcher.lower.graph_index import value_key
from stitch_planner.stitcher.lower.kernel_ir import (
    Buffer,
    PointwiseKernel,
    View,
    kernel_reads,
    kernel_writes,
    row_major,
)
from stitch_planner.stitcher.lower.lowering import Lowering, UnloweredError
from stitch_planner.stitcher.lower.workspace_memory import moved_kernel
from stitch_tools.models.graph import Graph


def write_inputs(lowering: Lowering, graph: Graph) -> None:
    """Adds what writes to inputs, after all other kernels: these read what the caller gave.

    Raises:
        UnloweredError: an operation writes to an input, and its template does not.
    """
    if writes_unseen(graph):
        raise UnloweredError("the forward writes to an input within an operation")
    users = {item.target: lowering.view((item.name, 0)) for item in graph.inputs if item.kind == "user"}
    waiting: list[tuple[View, View]] = []
    for out in written_inputs(graph.outputs):
        assert out.value is not None
        target, value = users[out.target], lowering.view(value_key(out.value))
        # Writing through a conversion or a broadcast is torch's copy_, for which there is no kernel.
        if value.dtype != target.dtype or value.shape != target.shape:
            raise UnloweredError(f"the forward writes another type or shape to input {out.target}")
        if value == target:
            continue
        if value.buffer.role == "input":  # it may be overwritten before it is read
            value = lowering.copy(value, row_major(value.shape), value.buffer.name)
        waiting.append((value, target))
    for value, target in waiting:
        place = _maker(lowering, value, target.buffer)
        if place is None:
            lowering.copy(value, target.strides, target.buffer.name, target)
        else:
            _store_in(lowering, place, value.buffer, target.buffer)


def _maker(lowering: Lowering, value: View, goal: Buffer) -> int | None:
    """The kernel that may store `value` in the input itself; None where that would spoil what others read."""
    made, kernels = value.buffer, lowering.kernels
    whole = made.role == "workspace" and value.is_dense and value.numel == made.numel
    writers = [place for place, kernel in enumerate(kernels) if made in kernel_writes(kernel)]
    # A buffer of which others use parts, or that two kernels fill, cannot move as a whole.
    if not whole or len(writers) != 1:
        return None
    place = writers[0]
    kernel = kernels[place]
    later = [buffer for k in kernels[place + 1 :] for buffer in (*kernel_reads(k), *kernel_writes(k))]
    if not isinstance(kernel, PointwiseKernel) or goal in later:
        return None
    # An element is read before it is overwritten only where both happen in one step of the loop.
    walks = [a for a in (*kernel.loads, *kernel.stores) if a.buffer in (made, goal)]
    return place if len({(walk.strides, walk.offset) for walk in walks}) == 1 else None


def _store_in(lowering: Lowering, place: int, made: Buffer, goal: Buffer) -> None:
    """Has the kernel at `place` store in `goal`, and all that follow read there."""

    def moved(buffer: Buffer) -> Buffer:
        return goal if buffer == made else buffer

    lowering.kernels[place:] = [moved_kernel(kernel, moved) for kernel in lowering.kernels[place:]]
