"""The reference server's requests. Other rooms add a handler with one line in `handlers`."""

import math
import time
from collections.abc import Callable, Sequence

import torch

from stitch_tools.protocol import memory
from stitch_tools.protocol.layout import GUARD
from stitch_tools.protocol.memory_faults import is_out_of_memory
from stitch_tools.protocol.messages import Done, Fault, Fd
from stitch_tools.protocol.messages_reference import (
    DRAW_UNAVAILABLE,
    DRAW_UNDECIDED,
    CaptureGraph,
    CompareBits,
    CompareOutputs,
    Construct,
    DrawMade,
    Expectation,
    ExpectOutputs,
    LoadReference,
    MakeDraw,
    MakeOutputs,
    MeasureSensitivity,
    ObserveReference,
    PrimeOutputs,
    SetWeights,
    WeightsMade,
)
from stitch_tools.protocol.serving import Handler, Handlers, OperationT, on, serve_ops
from stitch_tools.protocol.timing_messages import MeasureCeilings, TimeBaseline
from stitch_tools.protocol.wire import Channel
from stitch_tools.worker.aliased_inputs import places_of
from stitch_tools.worker.reference.altered_inputs import smallest_alteration
from stitch_tools.worker.reference.baselines import ceilings, timed_baseline
from stitch_tools.worker.reference.capture_operation import handle_capture
from stitch_tools.worker.reference.draw_kinds import ALTERED
from stitch_tools.worker.reference.draws import DrawUnavailableError, InputBounds, structures_of
from stitch_tools.worker.reference.load_reference import ReferenceFault, explain
from stitch_tools.worker.reference.observe import known_dtype, observe
from stitch_tools.worker.reference.oracle_memory import give_back_gpu_memory
from stitch_tools.worker.reference.output_memory import compare, make_outputs, prime, same_bits
from stitch_tools.worker.reference.output_rings import Rings
from stitch_tools.worker.reference.reference_calls import kept_generators, named_tensors
from stitch_tools.worker.reference.reference_state import ServerSettings, ServerState
from stitch_tools.worker.reference.sensitivity import sensitivity
from stitch_tools.worker.sleeping_threads import rest_between_loops
from stitch_tools.worker.tensors import map_pack, write_pack
from stitch_tools.worker.trees import flatten_inputs

# Before, between and behind outputs: as far as a tile of the usual sizes reaches beyond its tensor.
_GUARD_BYTES = 64 << 10


def serve(channel: Channel, scratch: str) -> None:
    """Answer the controller until it asks us to exit."""
    serve_ops(channel, handlers(ServerState()))


def handlers(state: ServerState) -> Handlers:
    """Handlers by operation; a fault of the reference's is an answer with the user's file and line."""

    def own(
        kind: type[OperationT], handler: Callable[[ServerState, OperationT], object]
    ) -> dict[str, Handler]:
        return on(kind, lambda message: _answer(state, lambda: handler(state, message)))

    return {
        **own(LoadReference, _load),
        **own(SetWeights, _set_weights),
        **own(Construct, _construct),
        **own(ObserveReference, _observe),
        **own(MakeDraw, _make_draw),
        **own(ExpectOutputs, _expect),
        **own(MakeOutputs, make_outputs),
        **own(PrimeOutputs, prime),
        **own(CompareOutputs, compare),
        **own(CompareBits, same_bits),
        **own(MeasureSensitivity, sensitivity),
        **own(CaptureGraph, handle_capture),
        **Rings().handlers(),
        **own(TimeBaseline, timed_baseline),
        **own(MeasureCeilings, ceilings),
    }


def _answer(state: ServerState, handle: Callable[[], object]) -> object:
    """The handler's reply, or a fault that names the user's own line or says why there is no such draw."""
    try:
        return handle()
    except DrawUnavailableError as reason:
        return Fault(DRAW_UNAVAILABLE, str(reason))
    except ReferenceFault as fault:
        return _fault_of(fault)
    except (MemoryError, RuntimeError) as error:
        # Work of ours on the reference's behalf (copies, fp64) that its size makes impossible.
        if state.reference is None or not is_out_of_memory(error):
            raise
        return _fault_of(explain(error, "out_of_memory", state.reference.source))
    finally:
        give_back_gpu_memory()


def _fault_of(fault: ReferenceFault) -> Fault:
    return Fault(fault.kind, fault.message, fault.file, fault.line, fault.source_line, fault.hint)


def _load(state: ServerState, message: LoadReference) -> Done:
    # What each format that the contract allows on the way holds.
    formats = message.matmul_precision, message.conv_precision
    largest = torch.finfo(torch.float16).max if "fp16" in formats else math.inf
    settings = ServerSettings(
        rtol=message.rtol,
        atol=message.atol,
        matmul_precision=message.matmul_precision,
        conv_precision=message.conv_precision,
        bounds=InputBounds(message.input_low, message.input_high, largest),
        input_writes=message.input_writes,
    )
    state.load(message.source, settings)
    return Done()


def _set_weights(state: ServerState, message: SetWeights) -> WeightsMade:
    generator = state.set_weights(message.seed, message.scale)
    reference, module = state.need()
    weights = [(name, tensor) for name, tensor, _ in named_tensors(module)]
    arguments = flatten_inputs(reference.init_arguments(message.seed))
    weights_fd, weights_manifest = write_pack(weights, on_device=message.on_device)
    init_fd, init_manifest = write_pack(list(zip(arguments.names, arguments.tensors, strict=True)))
    return WeightsMade(
        parameters=weights_manifest,
        init=init_manifest,
        init_structure=arguments.structure,
        generator=generator,
        scale=message.scale,
        training=module.training,
        fds=(Fd(weights_fd), Fd(init_fd)),
    )


def _construct(state: ServerState, message: Construct) -> Done:
    state.set_weights(message.seed)
    return Done()


def _observe(state: ServerState, message: ObserveReference) -> dict[str, object]:
    state.set_weights(message.weights_seed)
    reference, module = state.need()
    with kept_generators():
        facts = observe(reference, module, message, rtol=state.settings.rtol, atol=state.settings.atol)
    state.make_draw("own-1", message.input_seed, message.forward_seed)
    return facts


def _make_draw(state: ServerState, message: MakeDraw) -> DrawMade:
    kind = message.kind
    if kind == ALTERED:
        kind = smallest_alteration(state, message.seed, message.forward_seed)
    draw = state.make_draw(kind, message.seed, message.forward_seed)
    flat = flatten_inputs(draw.arguments)
    fd, manifest = write_pack(
        list(zip(flat.names, flat.tensors, strict=True)),
        sealed=not message.shared,
        on_device=message.on_device,
    )
    if message.shared:
        draw.shared = tuple(map_pack(fd, manifest, writable=False, private=False))
    places = tuple((place.root, place.offset) for place in places_of(flat.tensors))
    return DrawMade(manifest, flat.structure, places, (Fd(fd),))


def _expect(state: ServerState, message: ExpectOutputs) -> Expectation | Fault:
    """Layout of the outputs; a fault where a draw of ours is refused or decides nothing."""
    start = time.perf_counter()
    rest_between_loops()
    kind = state.draw.kind if state.draw else ""
    try:
        draw = state.expect(message.updated_buffers)
    except ReferenceFault as fault:
        if not kind.startswith("own") and fault.kind in ("forward", "wrong_inputs"):
            return Fault(DRAW_UNAVAILABLE, f"the reference refuses it: {fault.message[:300]}")
        raise
    unusable = state.unusable()
    if unusable:
        return Fault(DRAW_UNAVAILABLE, unusable)
    undecided = state.undecided()
    if undecided:
        return Fault(DRAW_UNDECIDED, undecided)
    guard = (GUARD, (_GUARD_BYTES,), None, "uint8")
    rows: list[tuple[str, Sequence[int], None, str]] = [guard]
    for row in draw.expected:
        rows += [(row.name, row.reference.shape, None, known_dtype(row.name, row.reference)), guard]
    layout, nbytes = memory.lay_out(rows)
    return Expectation(
        layout=layout,
        nbytes=nbytes,
        oracle=draw.oracle_kind,
        notes=(*draw.notes, *_kept_structure(state)),
        reference_s=time.perf_counter() - start,
        generator=state.forward_state(),
        structure=draw.call.outputs.structure if draw.call else None,
        held=tuple(draw.call.held) if draw.call else (),
        inputs_written=bool(draw.call and draw.call.inputs_after),
        memory_short=draw.memory_short,
    )


def _kept_structure(state: ServerState) -> tuple[str, ...]:
    """What a draw of ours did not break, and nothing is known without."""
    if state.reference is None or state.draw is None or state.draw.kind.startswith(("own", "maker-")):
        return ()
    names = flatten_inputs(state.draw.arguments).names
    rows = zip(names, structures_of(state.reference), strict=False)
    return tuple(
        f"input {name} other than {row.describe()}: every draw of the input maker is so"
        for name, row in rows
        if row.describe()
    )
