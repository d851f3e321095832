"""The `capture` operation of the reference server."""

import contextlib
import importlib
import sys
import threading

from stitch_tools.protocol.messages import Done
from stitch_tools.protocol.messages_reference import CaptureGraph, PrepareCapture
from stitch_tools.worker.capture.graph_capture import capture
from stitch_tools.worker.capture.graph_json import Json
from stitch_tools.worker.reference.reference_state import ServerState

# A graph without constants is the same for all weights and inputs.
_ANY_SEED, _OTHER_SEED = 1, 2


# What `torch.export.export` imports when it is first called: one to three seconds.
_EXPORT = "torch.export._trace"
# Each operation of the reference gives the interpreter away, and gets it back after so many seconds: with
# Python's own 5 ms a forward of 700 operations, which holds the GPU's lock, would last as long as the import.
_SWITCH_S = 0.0002


def prepare_capture(state: ServerState, message: PrepareCapture) -> Done:
    """The `prepare_capture` request: import what export needs while the reference is observed."""
    del state, message
    threading.Thread(target=_import_export, name="import-export", daemon=True).start()
    return Done()


def _import_export() -> None:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        # What fails here fails again where the graph is captured, which says so.
        with contextlib.suppress(Exception):
            importlib.import_module(_EXPORT)
    finally:
        sys.setswitchinterval(interval_s)


def handle_capture(state: ServerState, message: CaptureGraph) -> Json:
    """The `capture` request: the loaded reference's graph on the inputs of the current draw."""
    del message
    if state.module is None:
        state.set_weights(_ANY_SEED)
    if state.draw is None:
        state.make_draw("own-1", _ANY_SEED, _ANY_SEED)
    reference, module = state.need()
    graph = capture(module, state.arguments)
    if any("data_base64" in row for row in graph["inputs"]):
        other, _ = reference.construct(_OTHER_SEED)
        _keep_equal_constants(graph, capture(other, state.arguments))
    return graph


def _keep_equal_constants(graph: Json, other: Json) -> None:
    """Drop the data of constants that another construction gives other values (unregistered weights)."""
    seen = {row["name"]: row.get("data_base64") for row in other["inputs"]}
    for row in graph["inputs"]:
        if "data_base64" in row and seen.get(row["name"]) != row["data_base64"]:
            del row["data_base64"]
