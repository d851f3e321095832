"""Heads as nn.MultiheadAttention takes them out of its projection, without the copy that its detour asks for.

It joins batch and heads of [length, batch, heads * width] into one dim, turns that forward, and splits it
again.
In windows on one joint projection the joined dim has no single stride; the split one has two.
"""

from itertools import count

from stitch_planner.stitcher.lower.graph_index import GraphIndex, value_key
from stitch_tools.models.graph import Graph, GraphNode, ValueRef
from stitch_tools.models.task import TensorSpec

_VIEWS = frozenset(["aten.view.default", "aten.reshape.default"])


def split_heads(graph: Graph) -> Graph:
    """The graph in which such heads are split at once and then permuted; what is unused then stays."""
    index = GraphIndex(graph)
    taken = {*index.nodes, *index.inputs}
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        joined = _joined(node, index)
        nodes += [node] if joined is None else _split(node, joined, taken)
    return graph.model_copy(update={"nodes": tuple(nodes)})


def _joined(node: GraphNode, index: GraphIndex) -> GraphNode | None:
    """The view that joins batch and heads, where `node` splits them again behind a transposition."""
    if node.op not in _VIEWS or len(node.outputs[0].shape) != 4:
        return None
    turned = index.producer(value_key(node.args[0]))
    if turned is None or turned.op != "aten.transpose.int" or turned.args[1:] not in ((0, 1), (1, 0)):
        return None
    joined = index.producer(value_key(turned.args[0]))
    if joined is None or joined.op not in _VIEWS:
        return None
    batch, heads, length, width = node.outputs[0].shape
    source = index.shape(value_key(joined.args[0]))
    fits = joined.outputs[0].shape == (length, batch * heads, width) and source == (
        length,
        batch,
        heads * width,
    )
    return joined if fits else None


def _split(node: GraphNode, joined: GraphNode, taken: set[str]) -> list[GraphNode]:
    name = next(one for k in count() if (one := f"{node.name}_heads_{k}") not in taken)
    taken.add(name)
    batch, heads, length, width = node.outputs[0].shape
    shape = (length, batch, heads, width)
    spec = TensorSpec(name=name, shape=shape, dtype=node.outputs[0].dtype)
    split = joined.model_copy(update={"name": name, "args": (joined.args[0], shape), "outputs": (spec,)})
    order = (ValueRef(ref=name, index=0), (1, 2, 0, 3))
    return [split, node.model_copy(update={"op": "aten.permute.default", "args": order, "kwargs": {}})]
