"""The worker's requests. Other rooms add a handler with one line in `handlers`."""

import os
from collections.abc import Callable

import torch

from stitch_tools.protocol.memory import PackEntry
from stitch_tools.protocol.messages_candidate import (
    BeginTrace,
    EndTrace,
    InitProgram,
    LoadNative,
    LoadPython,
    ReloadWeights,
    RunProgram,
    RunTraced,
    StepReply,
)
from stitch_tools.protocol.messages_extension import BuildExtension
from stitch_tools.protocol.serving import Handler, Handlers, OperationT, on, serve_ops
from stitch_tools.protocol.timing_messages import LoadLoop, TimeProgram
from stitch_tools.protocol.wire import Channel
from stitch_tools.worker.aliased_inputs import SharedPlace
from stitch_tools.worker.candidate.activity.run import activity_begin, activity_end, activity_run
from stitch_tools.worker.candidate.candidate_state import CandidateState
from stitch_tools.worker.candidate.extension_builds import ask_for_extensions, build_extension
from stitch_tools.worker.candidate.timed_calls import timed_program, timed_runner
from stitch_tools.worker.precision import set_precision
from stitch_tools.worker.runtime.native import ProgramError
from stitch_tools.worker.sleeping_threads import rest_between_loops
from stitch_tools.worker.tensors import map_pack
from stitch_tools.worker.trees import TreeError, unflatten


def serve(channel: Channel, scratch: str) -> None:
    """Answer the controller until it asks us to exit."""
    serve_ops(channel, handlers(CandidateState()))


def handlers(state: CandidateState) -> Handlers:
    """Handlers by operation. What the program does wrong is an answer with `status` and `message`."""

    def own(
        kind: type[OperationT], handler: Callable[[CandidateState, OperationT], StepReply]
    ) -> dict[str, Handler]:
        def answer(message: OperationT) -> StepReply:
            try:
                return handler(state, message)
            except ProgramError as error:
                return StepReply(error.status, error.step, error.message)
            except TreeError as error:
                return StepReply("not_representable", "inputs", str(error))

        return on(kind, answer)

    return {
        **own(LoadNative, _load_native),
        **own(LoadPython, _load_python),
        **own(InitProgram, _init),
        **own(ReloadWeights, _reload),
        **own(RunProgram, _run),
        **own(BeginTrace, activity_begin),
        **own(RunTraced, activity_run),
        **on(EndTrace, lambda _: activity_end(state)),
        **own(LoadLoop, timed_runner),
        **own(TimeProgram, timed_program),
        **on(BuildExtension, build_extension),
    }


def _load_native(state: CandidateState, message: LoadNative) -> StepReply:
    state.load_native(message.path, message.libraries, message.device, message.threads)
    return StepReply()


def _load_python(state: CandidateState, message: LoadPython) -> StepReply:
    # The flags of the reference: what is forbidden there must not slip in through torch's defaults.
    set_precision(message.matmul_precision, message.conv_precision)
    for line in message.extensions:
        ask_for_extensions(os.dup(line))
    state.load_python(message.folder, message.main, message.device)
    return StepReply()


def _init(state: CandidateState, message: InitProgram) -> StepReply:
    state.earlier.forget()  # other weights, which may be what it returned
    weights = message.weights
    parameters_fd, init_fd = weights.fds
    if state.native is not None:
        state.init_native(state.native, _named(parameters_fd, weights.parameters), message.kept)
    if state.python is not None:
        arguments = unflatten(weights.init_structure, map_pack(init_fd, weights.init, writable=True))
        loaded = state.python.init(
            weights.generator,
            arguments,
            weights.scale,
            training=weights.training,
            state=_named(parameters_fd, weights.parameters) if message.load else (),
            reset=message.reset,
        )
        state.keep(message.kept)  # it makes them first
        return StepReply(loaded=loaded)
    return StepReply()


def _reload(state: CandidateState, message: ReloadWeights) -> StepReply:
    state.earlier.forget()
    parameters = _named(message.fd, message.parameters)
    reason = state.python.reload(parameters) if state.python is not None else "only a ModelNew is reloaded"
    state.keep(message.kept)
    return StepReply("not_reloadable", "reload", reason) if reason else StepReply()


def _run(state: CandidateState, message: RunProgram) -> StepReply:
    rest_between_loops()
    state.structure = message.structure
    mapped = state.take_inputs(
        message.inputs_fd,
        message.inputs,
        shared=message.shared,
        reuse=message.reuse,
        places=[SharedPlace(*pair) for pair in message.places],
    )
    outputs = state.map_outputs(message.outputs_fd, message.layout, again=message.again)
    end = state.run(outputs, message.generator, message.output_structure)
    state.earlier.look(state.inputs)
    state.earlier.keep(state.inputs, state.returned)
    if message.shared:
        state.give_back(mapped)
    unspoiled = state.shared_memory.reason if state.shared_memory is not None else ""
    changed = tuple(state.changed_buffers())
    return StepReply(
        generator=end,
        held=tuple(state.held),
        changed=changed,
        unspoiled=unspoiled,
        container=state.container,
        earlier_inputs=state.earlier.changed_inputs,
        earlier_outputs=state.earlier.changed_outputs,
    )


def _named(fd: int, manifest: list[PackEntry]) -> list[tuple[str, torch.Tensor]]:
    tensors = map_pack(fd, manifest, writable=True)
    return [(entry["name"], tensor) for entry, tensor in zip(manifest, tensors, strict=True)]
