"""The reference server's requests. Other rooms add a handler with one line in `handlers`."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from stitch_tools.protocol import memory
from stitch_tools.protocol.layout import GUARD
from stitch_tools.protocol.serving import Handler, Reply, Request, serve_ops
from stitch_tools.protocol.wire import Channel
from stitch_tools.worker.aliased_inputs import places_of
from stitch_tools.worker.capture.graph_capture import handle_capture
from stitch_tools.worker.order_one_weights import Scale
from stitch_tools.worker.reference.altered_inputs import smallest_alteration
from stitch_tools.worker.reference.baselines import ceilings, timed_baseline
from stitch_tools.worker.reference.draw_kinds import ALTERED
from stitch_tools.worker.reference.draws import Bounds, DrawUnavailableError
from stitch_tools.worker.reference.load_reference import ReferenceFault, ReferenceSource, explain
from stitch_tools.worker.reference.memory_forecast import is_out_of_memory
from stitch_tools.worker.reference.observe import Seeds, observe, spec
from stitch_tools.worker.reference.output_memory import compare, make_outputs, prime, same_bits
from stitch_tools.worker.reference.output_rings import Rings
from stitch_tools.worker.reference.reference_calls import kept_generators, named_tensors
from stitch_tools.worker.reference.reference_state import ServerState, Settings
from stitch_tools.worker.reference.sensitivity import sensitivity
from stitch_tools.worker.sleeping_threads import rest_between_loops
from stitch_tools.worker.tensors import map_pack, write_pack
from stitch_tools.worker.trees import flatten_inputs

_GUARD_BYTES = 64 << 10
"""Before, between and behind outputs: as far as a tile of the usual sizes reaches beyond its tensor."""


def serve(channel: Channel, scratch: str) -> None:
    """Answer the controller until it asks us to exit."""
    serve_ops(channel, handlers(ServerState()))


def handlers(state: ServerState) -> dict[str, Handler]:
    """Handlers by operation; a fault of the reference's is an answer with the user's file and line."""
    own: dict[str, Callable[[ServerState, Request], Reply]] = {
        "load": _load,
        "set_weights": _set_weights,
        "observe": _observe,
        "make_draw": _make_draw,
        "expect": _expect,
        "make_outputs": make_outputs,
        "prime": prime,
        "compare": compare,
        "same_bits": same_bits,
        "sensitivity": sensitivity,
        "timed_baseline": timed_baseline,
        "ceilings": ceilings,
        "capture": handle_capture,
    }
    return {name: _answering(state, handler) for name, handler in own.items()} | Rings().handlers()


def _answering(state: ServerState, handler: Callable[[ServerState, Request], Reply]) -> Handler:
    def answer(request: Request) -> Reply:
        try:
            return handler(state, request)
        except ReferenceFault as fault:
            return fault_reply(fault)
        except (MemoryError, RuntimeError) as error:
            # Work of ours on the reference's behalf (copies, fp64) that its size makes impossible.
            if state.reference is None or not is_out_of_memory(error):
                raise
            return fault_reply(explain(error, "out_of_memory", state.reference.source))

    return answer


def fault_reply(fault: ReferenceFault) -> Reply:
    """The answer that names the user's own line."""
    return Reply(
        {
            "ok": False,
            "error": {
                "kind": fault.kind,
                "message": fault.message,
                "file": fault.file,
                "line": fault.line,
                "source_line": fault.source_line,
                "hint": fault.hint,
                "traceback": "",
            },
        }
    )


def _load(state: ServerState, request: Request) -> Reply:
    message = request.message
    source = ReferenceSource(
        folder=message["folder"],
        main=message["main"],
        entry=message["entry"],
        inputs=message["inputs"],
        init_inputs=message["init_inputs"],
        search_path=tuple(message["search_path"]),
        mode=message["mode"],
        device=message["device"],
    )
    settings = Settings(
        rtol=message["rtol"],
        atol=message["atol"],
        matmul_precision=message["matmul_precision"],
        conv_precision=message["conv_precision"],
        bounds=Bounds(message["input_low"], message["input_high"], _largest(message)),
        input_writes=message["input_writes"],
    )
    state.load(source, settings)
    return Reply({"threads": torch.get_num_threads()})


def _largest(message: dict[str, Any]) -> float:
    """What each format that the contract allows holds."""
    formats = message["matmul_precision"], message["conv_precision"]
    return torch.finfo(torch.float16).max if "fp16" in formats else math.inf


def _set_weights(state: ServerState, request: Request) -> Reply:
    """Packs of named tensors and of the constructor's tensor arguments; blob: the generator state.

    `on_device` here and with a draw: what lies on a GPU travels in its own memory.
    """
    scale = request.message.get("scale")
    try:
        generator = state.set_weights(request.message["seed"], Scale(**scale) if scale else None)
    except DrawUnavailableError as reason:
        return Reply({"unavailable": str(reason)})
    reference, module = state.need()
    weights = [(name, tensor) for name, tensor, _ in named_tensors(module)]
    arguments = flatten_inputs(reference.init_arguments(request.message["seed"]))
    weights_fd, weights_manifest = write_pack(weights, on_device=bool(request.message.get("on_device")))
    init_fd, init_manifest = write_pack(list(zip(arguments.names, arguments.tensors, strict=True)))
    message = {
        "parameters": weights_manifest,
        "init": init_manifest,
        "init_structure": arguments.structure,
        "training": module.training,
        "parameter_names": [name for name, _, is_buffer in named_tensors(module) if not is_buffer],
    }
    return Reply(message, generator, (weights_fd, init_fd))


def _observe(state: ServerState, request: Request) -> Reply:
    message = request.message
    state.set_weights(message["weights_seed"])
    reference, module = state.need()
    seeds = Seeds(message["input_seed"], message["other_input_seed"], message["forward_seed"])
    with kept_generators():
        facts = observe(reference, module, seeds, rtol=state.settings.rtol, atol=state.settings.atol)
    state.make_draw("own-1", seeds.inputs, seeds.forward)
    return Reply({"facts": facts})


def _make_draw(state: ServerState, request: Request) -> Reply:
    message = request.message
    kind, seed, forward_seed = message["kind"], message["seed"], message["forward_seed"]
    try:
        if kind == ALTERED:
            kind = smallest_alteration(state, seed, forward_seed)
        draw = state.make_draw(kind, seed, forward_seed)
    except DrawUnavailableError as reason:
        return Reply({"unavailable": str(reason)})
    flat = flatten_inputs(draw.arguments)
    shared = bool(message.get("shared"))
    fd, manifest = write_pack(
        list(zip(flat.names, flat.tensors, strict=True)),
        sealed=not shared,
        on_device=bool(message.get("on_device")),
    )
    if shared:
        draw.shared = tuple(map_pack(fd, manifest, writable=False, private=False))
    places = [[place.root, place.offset] for place in places_of(flat.tensors)]
    return Reply({"inputs": manifest, "structure": flat.structure, "places": places}, fds=(fd,))


def _expect(state: ServerState, request: Request) -> Reply:
    """Specs and layout of the outputs. `unavailable` where a draw of ours is refused or decides nothing."""
    start = time.perf_counter()
    rest_between_loops()
    kind = state.draw.kind if state.draw else ""
    try:
        draw = state.expect(tuple(request.message.get("updated_buffers", ())))
    except ReferenceFault as fault:
        if not kind.startswith("own") and fault.kind in ("forward", "wrong_inputs"):
            return Reply({"unavailable": f"the reference refuses it: {fault.message[:300]}"})
        raise
    unusable = state.unusable()
    if unusable:
        return Reply({"unavailable": unusable})
    undecided = state.undecided()
    if undecided:
        return Reply({"unavailable": undecided, "undecided": True})
    outputs = [spec(row.name, row.reference) for row in draw.expected]
    rows: list[tuple[str, Any, Any, str]] = [(GUARD, (_GUARD_BYTES,), None, "uint8")]
    for row in outputs:
        rows += [(row["name"], row["shape"], None, row["dtype"]), (GUARD, (_GUARD_BYTES,), None, "uint8")]
    manifest, nbytes = memory.lay_out(rows)
    message = {
        "outputs": outputs,
        "layout": manifest,
        "nbytes": nbytes,
        "oracle": draw.oracle_kind,
        "notes": list(draw.notes),
        "seconds": time.perf_counter() - start,
        "structure": draw.call.outputs.structure if draw.call else None,
        "held": list(draw.call.held) if draw.call else [],
        "inputs_written": bool(draw.call and draw.call.inputs_after),
    }
    return Reply(message, state.forward_state())
