"""The graph without operations that change nothing, so that they do not stand between fusable ones."""

from stitch_planner.stitcher.index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.scalars import COPIES, DROPOUTS, EXPRESSIONS
from stitch_tools.models.graph import Argument, Graph, GraphNode, GraphOutput, ValueRef
from stitch_tools.worker.layout import BUFFER

_EXPANDS = frozenset(["aten.expand.default", "aten.expand_as.default"])


def simplify(graph: Graph, *, updates: bool = False) -> Graph:
    """The graph with identities removed, unused nodes removed, and explicit broadcasts left to their users.

    Args:
        graph: as captured.
        updates: keep what only an update of a buffer needs, and let such buffers be read anew in each call.
            Else an update is kept only as far as something else needs it: see `live_outputs`.
    """
    graph = _with_state(graph) if updates else graph
    index = GraphIndex(graph)
    same: dict[ValueKey, ValueKey] = {}
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        moved = _rerouted(node, same, index)
        if _is_identity(node, index):
            same[node.name, 0] = _root(value_key(node.args[0]), same)
        else:
            nodes.append(moved)
    outputs = tuple(
        out if out.value is None else out.model_copy(update={"value": _as_ref(out.value, same)})
        for out in graph.outputs
    )
    kept = [*live_outputs(outputs), *(buffer_updates(outputs) if updates else ())]
    return graph.model_copy(update={"nodes": _live(nodes, kept), "outputs": outputs})


def live_outputs(outputs: tuple[GraphOutput, ...]) -> list[GraphOutput]:
    """Outputs that a program must produce: what the caller gets back."""
    return [out for out in outputs if out.kind == "user" and out.value is not None]


def buffer_updates(outputs: tuple[GraphOutput, ...]) -> list[GraphOutput]:
    """Values that the forward writes into buffers. What an operation writes on the way is not among them."""
    return [out for out in outputs if out.kind == "buffer_mutation" and out.value is not None]


def _with_state(graph: Graph) -> Graph:
    """The graph in which no buffer that the forward writes counts as known at initialisation.

    It is an input then, and its target begins with `BUFFER`.
    """
    written = {out.target for out in graph.outputs if out.kind == "buffer_mutation"}
    inputs = tuple(
        item.model_copy(update={"kind": "user", "target": BUFFER + item.target})
        if item.kind == "buffer" and item.target in written
        else item
        for item in graph.inputs
    )
    return graph.model_copy(update={"inputs": inputs})


def _is_identity(node: GraphNode, index: GraphIndex) -> bool:
    if node.op in DROPOUTS:
        return argument(node, 2, "train") is False or argument(node, 1, "p") == 0
    if node.op not in COPIES:
        return False
    return index.spec(value_key(node.args[0])).dtype == node.outputs[0].dtype


def _rerouted(node: GraphNode, same: dict[ValueKey, ValueKey], index: GraphIndex) -> GraphNode:
    """The node reading the originals of removed ones; a pointwise one also looks through expands."""
    through = node.op in EXPRESSIONS

    def turn(value: Argument) -> Argument:
        if isinstance(value, tuple):
            return tuple(turn(item) for item in value)
        if not isinstance(value, ValueRef):
            return value
        key = _root((value.ref, value.index), same)
        while through:
            producer = index.producer(key)
            if producer is None or producer.op not in _EXPANDS:
                break
            key = _root(value_key(producer.args[0]), same)
        return ValueRef(ref=key[0], index=key[1])

    args = tuple(turn(item) for item in node.args)
    kwargs = {name: turn(item) for name, item in node.kwargs.items()}
    return (
        node
        if args == node.args and kwargs == node.kwargs
        else node.model_copy(update={"args": args, "kwargs": kwargs})
    )


def _as_ref(value: ValueRef, same: dict[ValueKey, ValueKey]) -> ValueRef:
    name, which = _root((value.ref, value.index), same)
    return ValueRef(ref=name, index=which)


def _root(key: ValueKey, same: dict[ValueKey, ValueKey]) -> ValueKey:
    return same.get(key, key)


def _live(nodes: list[GraphNode], outputs: list[GraphOutput]) -> tuple[GraphNode, ...]:
    """Nodes that one of `outputs` depends on."""
    wanted = {out.value.ref for out in outputs if out.value is not None}
    kept: list[GraphNode] = []
    for node in reversed(nodes):
        if node.name in wanted:
            kept.append(node)
            wanted.update(_names((*node.args, *node.kwargs.values())))
    return tuple(reversed(kept))


def _names(arguments: tuple[Argument, ...]) -> set[str]:
    found: set[str] = set()
    for value in arguments:
        if isinstance(value, ValueRef):
            found.add(value.ref)
        elif isinstance(value, tuple):
            found |= _names(value)
    return found
