"""The program under the clock: a ring of prepared calls, outputs into the controller's memory."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from stitch_tools.protocol import memory
from stitch_tools.protocol.messages_candidate import StepReply
from stitch_tools.protocol.timing_messages import LoadLoop, TimeProgram
from stitch_tools.worker.candidate.candidate_state import CandidateState
from stitch_tools.worker.plain_calls import copy_plainly
from stitch_tools.worker.runtime.native import NativeProgram, ProgramError
from stitch_tools.worker.tensors import map_pack
from stitch_tools.worker.timed.loop import NativeRunner
from stitch_tools.worker.timed.region import PythonRing, graphed_program, serve_native
from stitch_tools.worker.trees import TreeError, arranged, flatten_outputs, fresh_copy, unflatten


def timed_runner(state: CandidateState, message: LoadLoop) -> StepReply:
    """Load the C loop and resolve its driver functions; asked for before the program is loaded.

    Raises:
        ProgramError: the program is loaded already, and could have put itself in between.
    """
    if state.native is not None or state.python is not None:
        raise ProgramError("error", "timed_runner", "the timed loop comes before the program")
    state.runner = NativeRunner(message.library, cuda=message.cuda)
    return StepReply()


def timed_program(state: CandidateState, asked: TimeProgram) -> StepReply:
    """Prepare the ring and serve batches of calls until the controller stops.

    Where draws of `unseen` follow, the ring then gets these, and batches are served until it stops once more.
    With `in_place` the draws are the slots' inputs themselves, in memory that the controller writes to.
    """
    specs = [(name, shape, None, dtype) for name, shape, dtype in asked.outputs]
    layout, _ = memory.lay_out(specs * asked.slots)
    targets = map_pack(asked.outputs_fd, layout, writable=True, private=False, populate=True)
    draws = [
        [
            _placed(state, tensor)
            for tensor in map_pack(fd, manifest, writable=True, private=not asked.in_place)
        ]
        for fd, manifest in zip(asked.draw_fds, [*asked.inputs, *asked.unseen], strict=True)
    ]
    count = len(asked.inputs)
    rows = [targets[first : first + len(specs)] for first in range(0, len(targets), len(specs))]
    ring = _Ring(draws[:count], draws[count:], rows)
    if asked.graphed:
        _serve_graphed(state, ring, asked)
    elif state.native is None:
        _serve_python(state, ring, asked)
    else:
        _serve_native(state.native, state, ring, asked)
    return StepReply()


@dataclass(frozen=True)
class _Ring:
    """What one loop goes over."""

    draws: list[list[torch.Tensor]]
    unseen: list[list[torch.Tensor]]
    rows: list[list[torch.Tensor]]
    """Outputs of every slot, in the controller's memory."""


def _serve_native(program: NativeProgram, state: CandidateState, ring: _Ring, asked: TimeProgram) -> None:
    if state.runner is None:
        raise ProgramError("error", "timed_program", "the timed loop comes first")
    parameters = dict(state.parameters)
    outputs = [[tensor if tensor.is_cuda else _placed(state, tensor) for tensor in row] for row in ring.rows]
    request_fd, reply_fd = asked.pipes
    serve_native(
        program,
        ring.draws,
        outputs,
        updated=[parameters[name].clone() for name in asked.state],
        unseen=ring.unseen,
        in_place=asked.in_place,
        collect=lambda slot: _copy_back(outputs[slot], ring.rows[slot]),
        runner=state.runner,
        request_fd=request_fd,
        reply_fd=reply_fd,
        stream=state.stream,
    )


def _serve_graphed(state: CandidateState, ring: _Ring, asked: TimeProgram) -> None:
    program, draws, rows = state.native, ring.draws, ring.rows
    if program is None or not program.plan(draws[0]).capturable:
        raise ProgramError("unsupported", "timed_program", "its forward is not capturable")
    with torch.inference_mode():
        call = graphed_program(program, draws[0])
    # All slots' outputs are the graph's own memory: only those of the latest call can be fetched.
    calls = PythonRing(call, draws, len(rows), keep_outputs=True)
    calls.serve(
        *asked.pipes, cuda=True, collect=lambda slot: _copy_back(calls.outputs[slot] or (), rows[slot])
    )


def _serve_python(state: CandidateState, ring: _Ring, asked: TimeProgram) -> None:
    if state.python is None or state.python.module is None:
        raise ProgramError("error", "timed_program", "load and init come first")
    structure, wanted = asked.structure, asked.output_structure
    calls = PythonRing(
        state.python.call,
        [unflatten(structure, draw) for draw in ring.draws],
        len(ring.rows),
        keep_outputs=True,
        in_place=asked.in_place,
    )

    def collect(slot: int) -> None:
        value = calls.outputs[slot]
        # Another tree than the reference's is left as it was, poison.
        with suppress(TreeError):
            if value is not None:
                _copy_back(arranged(flatten_outputs(value), wanted).tensors, ring.rows[slot])

    cuda = state.device.startswith("cuda")
    calls.serve(*asked.pipes, cuda=cuda, collect=collect)
    if ring.unseen:
        calls.refill([unflatten(structure, draw) for draw in ring.unseen])
        calls.serve(*asked.pipes, cuda=cuda, collect=collect)


def _copy_back(values: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Copy the outputs of one slot; one of another shape stays what it was, poison."""
    with torch.inference_mode():
        pairs = [pair for pair in zip(values, targets, strict=False) if pair[0].shape == pair[1].shape]
        copy_plainly([target for _, target in pairs], [value for value, _ in pairs])


def _placed(state: CandidateState, tensor: torch.Tensor) -> torch.Tensor:
    return fresh_copy(tensor, state.device) if state.device.startswith("cuda") else tensor
