"""The graph without operations that change nothing, so that they do not stand between fusable ones."""

from stitch_planner.stitcher.graph.decompositions import decompose
from stitch_planner.stitcher.graph.heads import split_heads
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.scalars import COPIES, DROPOUTS, EXPRESSIONS
from stitch_tools.models.graph import Argument, Graph, GraphNode, GraphOutput, ValueRef
from stitch_tools.protocol.layout import BUFFER

_LIFTED = "lifted_tensor"
"""What export calls tensors that the forward makes itself, and no module holds."""
_EXTREMES = {"aten.max.dim": "aten.amax.default", "aten.min.dim": "aten.amin.default"}
_BROADCAST = "aten.broadcast_tensors.default"
_COPY_INTO = "aten.copy.default"
_EXPANDS = frozenset(["aten.expand.default", "aten.expand_as.default"])


def simplify(graph: Graph, *, updates: bool = False, input_writes: bool = True) -> Graph:
    """The graph with identities removed, unused nodes removed, and explicit broadcasts left to their users.

    Args:
        graph: as captured.
        updates: keep what the forward writes to buffers, and let such buffers be read anew in each call. Else
            none is written: what changed from call to call would change outputs that depend on it.
        input_writes: keep what the forward writes to its inputs.
    """
    graph = decompose(_with_state(graph) if updates else graph)
    dropped = {"buffer_mutation": not updates, "input_mutation": not input_writes}
    index = GraphIndex(graph)
    same: dict[ValueKey, ValueKey] = {}
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        moved = _without_places(_rerouted(node, same, index), index)
        # The chain is resolved now: `same` never leads to another removed node.
        if _is_identity(node, index):
            same[node.name, 0] = _root(value_key(node.args[_kept_operand(node)]), same)
        elif node.op == _BROADCAST and _broadcasts_nothing(node, index):
            for place, key in enumerate(index.operands(node)):
                same[node.name, place] = _root(key, same)
        else:
            nodes.append(moved)
    outputs = tuple(
        out if out.value is None else out.model_copy(update={"value": _as_ref(out.value, same)})
        for out in graph.outputs
        if not dropped.get(out.kind)
    )
    kept = [*live_outputs(outputs), *written_inputs(outputs), *buffer_updates(outputs)]
    whole = split_heads(graph.model_copy(update={"nodes": tuple(nodes), "outputs": outputs}))
    return whole.model_copy(update={"nodes": _live(list(whole.nodes), kept)})


def unembedded(graph: Graph) -> tuple[str, ...]:
    """Attributes of modules that are read, and are no constants that a program can bring along.

    They are plain tensors, neither parameters nor buffers: too large, or drawn anew in each construction.
    """
    index = GraphIndex(graph)
    return tuple(
        item.target
        for item in graph.inputs
        if item.kind == "constant"
        and item.data_base64 is None
        and not item.target.startswith(_LIFTED)
        and (index.users((item.name, 0)) or index.leaves((item.name, 0)))
    )


def with_attributes(graph: Graph, attributes: tuple[str, ...]) -> Graph:
    """The graph in which these attributes are buffers: given to the program instead of written into it."""
    inputs = tuple(
        item.model_copy(update={"kind": "buffer"})
        if item.kind == "constant" and item.target in attributes
        else item
        for item in graph.inputs
    )
    return graph.model_copy(update={"inputs": inputs})


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
    if node.op not in COPIES and node.op != _COPY_INTO:
        return False
    key = value_key(node.args[_kept_operand(node)])
    source = index.inputs.get(key[0])
    if source is not None and source.target.startswith(BUFFER):
        return False  # the buffer is written later, and the copy holds what was there before
    result = node.outputs[0]
    return (index.spec(key).dtype, index.shape(key)) == (result.dtype, result.shape)


def _without_places(node: GraphNode, index: GraphIndex) -> GraphNode:
    """Extremes along a dim whose places nobody wants as the plain reduction, which fuses with others."""
    reduction = _EXTREMES.get(node.op)
    places = (node.name, 1)
    if reduction is None or index.users(places) or index.leaves(places):
        return node
    keepdim = argument(node, 2, "keepdim", False)
    args = (node.args[0], (argument(node, 1, "dim"),), keepdim)
    return node.model_copy(update={"op": reduction, "args": args, "kwargs": {}, "outputs": node.outputs[:1]})


def _broadcasts_nothing(node: GraphNode, index: GraphIndex) -> bool:
    """Whether all operands of broadcast_tensors have the common shape, as those of a loss do."""
    return all(
        index.shape(key) == out.shape for key, out in zip(index.operands(node), node.outputs, strict=True)
    )


def _kept_operand(node: GraphNode) -> int:
    """Which operand an identity gives back. What a copy overwrites need not even be known."""
    return 1 if node.op == _COPY_INTO else 0


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
