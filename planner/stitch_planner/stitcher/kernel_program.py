"""From steps to a kernel program: inputs and parameters in, kernels in order, outputs dense at the end."""

import base64
from dataclasses import replace
from math import prod

from stitch_planner.stitcher.graph.partition import Step
from stitch_planner.stitcher.graph.simplify import live_outputs
from stitch_planner.stitcher.input_writes import write_inputs
from stitch_planner.stitcher.lower.copies import tiled_copy
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, value_key
from stitch_planner.stitcher.lower.kernel_ir import (
    SCALAR_BYTES,
    Buffer,
    Kernel,
    KernelProgram,
    LibraryCall,
    PointwiseKernel,
    View,
    kernel_reads,
    kernel_writes,
    row_major,
)
from stitch_planner.stitcher.lower.lowering import Lowering, UnloweredError, scalar
from stitch_planner.stitcher.lower.templates.windows import MOVES
from stitch_planner.stitcher.lower.workspace_memory import assign_offsets
from stitch_tools.models.graph import Graph, GraphInput
from stitch_tools.models.task import TensorSpec
from stitch_tools.protocol.memory import span_elements


def lower_steps(name: str, target: str, graph: Graph, steps: list[Step]) -> KernelProgram:
    """The whole forward as kernels. `graph` is simplified, `steps` its partition without eager steps.

    Raises:
        UnloweredError: a template met what its `refuses` did not foresee.
    """
    index = GraphIndex(graph)
    on_cpu = target == "cpu"
    lowering = Lowering(index, make_copy=tiled_copy, keeps_copies=on_cpu)
    inputs = _bind_inputs(lowering, graph, strided=on_cpu)
    outputs = [value_key(out.value) for out in live_outputs(graph.outputs)]
    # Before anything is lowered, so that producers of outputs write into the caller's memory.
    _reserve_outputs(lowering, outputs)
    for step in steps:
        if step.template is None:
            raise UnloweredError(step.reason)
        try:
            step.template.lower(step.nodes, lowering)
        except UnloweredError as error:
            # The nodes travel with the error: the stitcher gives them to PyTorch and tries again.
            raise UnloweredError(str(error), tuple(node.name for node in step.nodes)) from error
    finished = tuple(_finish_output(lowering, key, place) for place, key in enumerate(outputs))
    # Last: all other kernels read what the caller gave.
    write_inputs(lowering, graph)
    return _assemble(name, target, lowering, inputs, finished)


def copied_bytes(target: str, graph: Graph, steps: list[Step]) -> dict[str, int]:
    """Bytes that copies between layouts read and write in each forward, by the first node of their step.

    Copies that bring results into the caller's memory belong to the step that makes the output. Nothing where
    a step stays with PyTorch, or cannot be lowered.
    """
    try:
        program = lower_steps("plan", target, graph, steps)
    except UnloweredError:
        return {}
    step_of = {node.name: step.nodes[0].name for step in steps for node in step.nodes}
    result: dict[str, int] = {}
    waiting, last = 0, ""
    for kernel in program.kernels:
        if not kernel.nodes:  # computes nothing: a copy
            waiting += 2 * _written_bytes(kernel)
        elif kernel.nodes:
            last = step_of[kernel.nodes[0]]
            result[last] = result.get(last, 0) + waiting
            waiting = 0
    if last:
        result[last] += waiting
    return result


def _written_bytes(kernel: Kernel) -> int:
    if isinstance(kernel, LibraryCall):
        return sum(view.numel * SCALAR_BYTES[view.dtype] for view in kernel.operation.writes())
    assert isinstance(kernel, PointwiseKernel)
    return sum(prod(kernel.space) * SCALAR_BYTES[access.buffer.dtype] for access in kernel.stores)


def _bind_inputs(lowering: Lowering, graph: Graph, *, strided: bool) -> tuple[View, ...]:
    """Binds every graph input; returns the user's in ABI order, as captured where `strided`, else dense."""
    users: list[View] = []
    for item in graph.inputs:
        is_user = item.kind == "user"
        key = (item.name, 0)
        used = is_user or bool(lowering.index.users(key)) or lowering.index.leaves(key)
        strides = _input_strides(item.spec) if is_user and strided else row_major(item.spec.shape)
        buffer = Buffer(
            lowering.unique(item.name),
            scalar(item.spec.dtype) if used else "uint8",
            span_elements(item.spec.shape, strides),
            "input" if is_user else "param",
            position=len(users) if is_user else 0,
            source=item.target if item.kind in ("parameter", "buffer") else "",
            data=constant_data(item) if used and item.kind == "constant" else None,
        )
        view = View(buffer, item.spec.shape, strides)
        lowering.bind(key, view)
        if is_user:
            users.append(view)
    return tuple(users)


def _input_strides(spec: TensorSpec) -> tuple[int, ...]:
    """The strides in which a program reads an input: those that it was captured with.

    Row-major where elements of it share memory otherwise than by repeating along a dim (a window that slides
    over a vector): a caller's tensor need not share any, and could not be copied into such a layout.
    """
    if spec.stride is None:
        return row_major(spec.shape)
    walked = sorted(
        (step, size) for size, step in zip(spec.shape, spec.stride, strict=True) if step and size > 1
    )
    reach = 0
    for step, size in walked:
        if step <= reach:
            return row_major(spec.shape)
        reach += (size - 1) * step
    return spec.stride


def constant_data(item: GraphInput) -> bytes:
    """The elements of a constant that the reference made itself.

    Raises:
        UnloweredError: there are too many, or another construction gives other ones.
    """
    if item.data_base64 is None:
        raise UnloweredError(
            f"the constant {item.name} is too large for a program, or changes with the weights"
        )
    return base64.b64decode(item.data_base64)


def _reserve_outputs(lowering: Lowering, outputs: list[ValueKey]) -> None:
    """Lets the value behind each output, through dense views, be stored where the caller wants it."""
    for place, key in enumerate(outputs):
        index = lowering.index
        while (node := index.producer(key)) is not None and node.op in MOVES and len(node.outputs) == 1:
            before = value_key(node.args[0])
            reshapes = MOVES[node.op].__name__ == "_reshape"
            # Behind a transpose or a broadcast the value lies differently from the output, so a copy is
            # needed there.
            if not reshapes or index.spec(before).numel != node.outputs[0].numel:
                break
            key = before
        if index.producer(key) is not None:
            lowering.output_of.setdefault(key, place)


def _finish_output(lowering: Lowering, key: ValueKey, place: int) -> View:
    """The output's window; a copy is added where the value does not lie there yet."""
    view = lowering.view(key)
    at_home = view.buffer.role == "output" and view.buffer.position == place
    if at_home and view.is_dense and view.offset == 0 and view.numel == view.buffer.numel:
        return view
    buffer = Buffer(lowering.unique(f"out_{place}"), view.dtype, prod(view.shape), "output", place)
    target = View(buffer, view.shape, row_major(view.shape))
    return lowering.copy(view, target.strides, key[0], target)


def _assemble(
    name: str, target: str, lowering: Lowering, inputs: tuple[View, ...], outputs: tuple[View, ...]
) -> KernelProgram:
    kernels = tuple(lowering.kernels)
    used = _used(kernels)
    kept = _kept(lowering, used)
    shown = {*used, *(buffer.window.buffer for buffer in kept if buffer.window is not None)}
    params = tuple(
        view
        for key, view in lowering.values.items()
        if view.buffer.role == "param" and view.buffer in shown and key in _inputs_of(lowering)
    )
    program = KernelProgram(
        name=name,
        target=target,
        inputs=inputs,
        outputs=outputs,
        params=params,
        kernels=kernels,
        buffers=tuple(used),
        kept=kept,
    )
    return assign_offsets(replace(program))


def _kept(lowering: Lowering, used: list[Buffer]) -> tuple[Buffer, ...]:
    """The copies of parameters that kernels use, and those that such copies are made from."""
    wanted = set(used)
    buffers: list[Buffer] = []
    for view in reversed(lowering.kept.values()):
        if view.buffer in wanted and view.buffer.window is not None:
            buffers.append(view.buffer)
            wanted.add(view.buffer.window.buffer)
    return tuple(reversed(buffers))


def _inputs_of(lowering: Lowering) -> set[ValueKey]:
    return {(name, 0) for name in lowering.index.inputs}


def _used(kernels: tuple[Kernel, ...]) -> list[Buffer]:
    buffers: dict[Buffer, None] = {}
    for kernel in kernels:
        for buffer in (*kernel_reads(kernel), *kernel_writes(kernel)):
            buffers.setdefault(buffer)
    return list(buffers)
