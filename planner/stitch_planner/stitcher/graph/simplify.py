"""The graph without operations that change nothing, so that they do not stand between fusable ones."""

from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.scalars import COPIES, DROPOUTS, EXPRESSIONS
from stitch_tools.models.graph import Argument, Graph, GraphNode, GraphOutput, ValueRef
from stitch_tools.protocol.layout import BUFFER

_EXPANDS = frozenset(["aten.expand.default", "aten.expand_as.default"])


def simplify(graph: Graph, *, updates: bool = False, input_writes: bool = True) -> Graph:
    """The graph with identities removed, unused nodes removed, and explicit broadcasts left to their users.

    Args:
        graph: as captured.
        updates: keep what the forward writes to buffers, and let such buffers be read anew in each call. Else
            none is written: what changed from call to call would change outputs that depend on it.
        input_writes: keep what the forward writes to its inputs.
    """
    graph = _with_state(graph) if updates else graph
    dropped = {"buffer_mutation": not updates, "input_mutation": not input_writes}
    index = GraphIndex(graph)
    same: dict[ValueKey, ValueKey] = {}
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        moved = _rerouted(node, same, index)
        # The chain is resolved now: `same` never leads to another removed node.
        if _is_identity(node, index):
            same[node.name, 0] = _root(value_key(node.args[0]), same)
        else:
            nodes.append(moved)
    outputs = tuple(
        out if out.value is None else out.model_copy(update={"value": _as_ref(out.value, same)})
        for out in graph.outputs
        if not dropped.get(out.kind)
    )
    kept = [*live_outputs(outputs), *written_inputs(outputs), *buffer_updates(outputs)]
    return graph.model_copy(update={"nodes": _live(nodes, kept), "outputs": outputs})


def live_outputs(outputs: tuple[GraphOutput, ...]) -> list[GraphOutput]:
    """Outputs that a program must produce: what the caller gets back."""
    return [out for out in outputs if out.kind == "user" and out.value is not None]


def buffer_updates(outputs: tuple[GraphOutput, ...]) -> list[GraphOutput]:
    """Values that the forward writes into buffers. What an operation writes on the way is not among them."""
    return [out for out in outputs if out.kind == "buffer_mutation" and out.value is not None]


def written_inputs(outputs: tuple[GraphOutput, ...]) -> list[GraphOutput]:
    """Values that the forward leaves in its inputs; `target` is the position of one."""
    return [out for out in outputs if out.kind == "input_mutation" and out.value is not None]


def writes_unseen(graph: Graph) -> bool:
    """Whether an operation writes to an input without giving the value back, as batch_norm does."""
    return any(out.kind == "input_mutation" and out.value is None for out in graph.outputs)


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
    source = index.inputs.get(value_key(node.args[0])[0])
    if source is not None and source.target.startswith(BUFFER):
        return False  # the buffer is written later, and the copy holds what was there before
    return index.spec(value_key(node.args[0])).dtype == node.outputs[0].dtype


def _rerouted(node: GraphNode, same: dict[ValueKey, ValueKey], index: GraphIndex) -> GraphNode:
    """The node reading the originals of removed ones; a pointwise one also looks through expands."""
    # Norms have library templates, too, which read their operands with the shapes that they are given.
    through = node.op in EXPRESSIONS and node.op != "aten.batch_norm.default"

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
    # Backwards, so that one pass suffices: a node's readers are decided before it is.
    for node in reversed(nodes):
        if node.name in wanted:
            kept.append(node)
            wanted.update(_names((*node.args, *node.kwargs.values())))
    return tuple(reversed(kept))


def _names(arguments: tuple[Argument, ...]) -> set[str]:
    names: set[str] = set()
    for value in arguments:
        if isinstance(value, ValueRef):
            names.add(value.ref)
        elif isinstance(value, tuple):
            names |= _names(value)
    return names
