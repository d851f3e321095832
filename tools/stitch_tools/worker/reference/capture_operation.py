"""The `capture` operation of the reference server."""

from stitch_tools.protocol.messages_reference import CaptureGraph
from stitch_tools.worker.capture.graph_capture import capture
from stitch_tools.worker.capture.graph_json import Json
from stitch_tools.worker.reference.reference_state import ServerState

# A graph without constants is the same for all weights and inputs.
_ANY_SEED, _OTHER_SEED = 1, 2


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
