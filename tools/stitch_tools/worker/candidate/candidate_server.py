"""The worker's requests. Other rooms add a handler with one line in `handlers`."""

from collections.abc import Callable
from typing import Any

from stitch_tools.protocol.layout import BUFFER
from stitch_tools.protocol.serving import Handler, Reply, Request, serve_ops
from stitch_tools.protocol.wire import Channel
from stitch_tools.worker.aliased_inputs import Place
from stitch_tools.worker.candidate.activity.run import activity_begin, activity_end, activity_run
from stitch_tools.worker.candidate.candidate_state import CandidateState
from stitch_tools.worker.candidate.native import ProgramError
from stitch_tools.worker.candidate.timed_calls import timed_program, timed_runner
from stitch_tools.worker.order_one_weights import Scale
from stitch_tools.worker.precision import set_precision
from stitch_tools.worker.sleeping_threads import rest_between_loops
from stitch_tools.worker.tensors import map_pack
from stitch_tools.worker.trees import TreeError


def serve(channel: Channel, scratch: str) -> None:
    """Answer the controller until it asks us to exit."""
    serve_ops(channel, handlers(CandidateState()))


def handlers(state: CandidateState) -> dict[str, Handler]:
    """Handlers by operation. What the program does wrong is an answer with `status` and `message`."""
    own: dict[str, Callable[[CandidateState, Request], Reply]] = {
        "load": _load,
        "init": _init,
        "reload": _reload,
        "run": _run,
        "activity_begin": activity_begin,
        "activity_run": activity_run,
        "activity_end": activity_end,
        "timed_runner": timed_runner,
        "timed_program": timed_program,
    }
    return {name: _answering(state, handler) for name, handler in own.items()}


def _answering(state: CandidateState, handler: Callable[[CandidateState, Request], Reply]) -> Handler:
    def answer(request: Request) -> Reply:
        try:
            return handler(state, request)
        except ProgramError as error:
            return Reply({"status": error.status, "step": error.step, "message": error.message})
        except TreeError as error:
            return Reply({"status": "not_representable", "step": "inputs", "message": str(error)})

    return answer


def _done(blob: bytes = b"", **fields: Any) -> Reply:
    return Reply({"status": "ok", "step": "", "message": "", **fields}, blob)


def _load(state: CandidateState, request: Request) -> Reply:
    message = request.message
    if message["format"] == "native":
        state.load_native(message["path"], message["libraries"], message["device"], message["threads"])
    else:
        # The flags of the reference: what is forbidden there must not slip in through torch's defaults.
        set_precision(message["matmul_precision"], message["conv_precision"])
        state.load_python(message["folder"], message["main"], message["device"])
    return _done()


def _init(state: CandidateState, request: Request) -> Reply:
    message = request.message
    parameters = _named(request.fds[0], message["parameters"])
    init_tensors = [tensor for _, tensor in _named(request.fds[1], message["init"])]
    scale = message.get("scale")
    state.init(
        parameters,
        request.blob,
        message["init_structure"],
        init_tensors,
        Scale(**scale) if scale is not None else None,
        message["kept"],
        training=message["training"],
    )
    return _done()


def _reload(state: CandidateState, request: Request) -> Reply:
    """Other weights into the same instance, in place; status `not_reloadable` where names do not agree."""
    parameters = _named(request.fds[0], request.message["parameters"])
    reason = state.python.reload(parameters) if state.python is not None else "only a ModelNew is reloaded"
    state.keep(request.message["kept"])
    return Reply({"status": "not_reloadable", "step": "reload", "message": reason}) if reason else _done()


def _run(state: CandidateState, request: Request) -> Reply:
    rest_between_loops()
    message, (inputs_fd, outputs_fd) = request.message, request.fds
    layout = message["layout"]
    state.buffer_names = tuple(
        entry["name"].removeprefix(BUFFER) for entry in layout if entry["name"].startswith(BUFFER)
    )
    places = [Place(*pair) for pair in message["places"]]
    mapped = state.take_inputs(
        inputs_fd, message["inputs"], shared=message["shared"], reuse=message["reuse"], places=places
    )
    outputs = state.map_outputs(outputs_fd, layout, again=message["again"])
    state.structure = message["structure"]
    planned, end = None, b""
    if state.native is not None:
        planned = state.run_native(outputs)
    else:
        end = state.run_python(state.structure, outputs, request.blob, message["output_structure"])
    if message["shared"]:
        state.give_back(mapped)
    changed = state.changed_buffers()
    unspoiled = state.shared_memory.reason if state.shared_memory is not None else ""
    if planned is None:
        return _done(end, held=state.held, changed=changed, unspoiled=unspoiled)
    return _done(
        changed=changed,
        unspoiled=unspoiled,
        workspace_bytes=planned.workspace_bytes,
        capturable=planned.capturable,
        inplace_state=planned.inplace_state,
    )


def _named(fd: int, manifest: list[Any]) -> list[tuple[str, Any]]:
    tensors = map_pack(fd, manifest, writable=True)
    return [(entry["name"], tensor) for entry, tensor in zip(manifest, tensors, strict=True)]
