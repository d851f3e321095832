"""The graph without operations that change nothing, so that they do not stand between fusable ones."""

from stitch_planner.stitcher.index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.scalars import COPIES, DROPOUTS, EXPRESSIONS
from stitch_tools.models.graph import Argument, Graph, GraphNode, GraphOutput, ValueRef

_EXPANDS = frozenset(["aten.expand.default", "aten.expand_as.default"])


def simplify(graph: Graph) -> Graph:
    """The graph with identities removed, unused nodes removed, and explicit broadcasts left to their users.

    Buffer updates are kept only as far as something else needs them: see `live_outputs`.
    """
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
    return graph.model_copy(update={"nodes": _live(nodes, outputs), "outputs": outputs})


def live_outputs(outputs: tuple[GraphOutput, ...]) -> list[GraphOutput]:
    """Outputs that a program must produce: what the caller gets back."""
    return [out for out in outputs if out.kind == "user" and out.value is not None]


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


def _live(nodes: list[GraphNode], outputs: tuple[GraphOutput, ...]) -> tuple[GraphNode, ...]:
    """Nodes that an output for the caller depends on."""
    wanted = {out.value.ref for out in live_outputs(outputs) if out.value is not None}
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
