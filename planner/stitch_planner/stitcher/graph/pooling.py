"""Pooling behind element-wise operations as a reduction, so that one kernel computes both.

Windows that do not overlap are a view of the image: [N, C, H, W] as [N, C, rows, height, columns, width].
What comes before the pooling is then computed over that view, and never stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from stitch_planner.stitcher.graph.decompositions import unused_name
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.image_shapes import pair
from stitch_planner.stitcher.lower.scalars import EXPRESSIONS
from stitch_tools.models.graph import Argument, Graph, GraphNode, ValueRef
from stitch_tools.models.task import TensorSpec

_MAXIMUM, _AVERAGE = "aten.max_pool2d.default", "aten.avg_pool2d.default"
FEWEST_ELEMENTS = 1 << 20
"""Of the image: below these it stays in the cache until it is pooled."""
MOST_OF_WINDOW = 64
"""Elements that one thread reduces."""


def pools_as_reductions(graph: Graph) -> Graph:
    """The graph in which such poolings reduce a view."""
    index = GraphIndex(graph)
    taken = {*index.nodes, *index.inputs}
    moved: dict[str, list[GraphNode]] = {}
    """What stands in the place of a node."""
    for node in graph.nodes:
        window = window_of(node, index)
        chain = None if window is None else _chain(node, index)
        if window is None or chain is None or any(one.name in moved for one in chain):
            continue
        split = _Split(index, window, taken)
        for one in chain:
            moved[one.name] = split.element(one)
        moved[node.name] = [split.reduced(node)]
    nodes = [made for node in graph.nodes for made in moved.get(node.name, [node])]
    return graph.model_copy(update={"nodes": tuple(nodes)})


def window_of(node: GraphNode, index: GraphIndex) -> tuple[int, int] | None:
    """Height and width of a pooling's windows, where they lie side by side without padding; else None."""
    if node.op not in (_MAXIMUM, _AVERAGE) or len(node.outputs[0].shape) != 4:
        return None
    kernel = pair(argument(node, 1, "kernel_size"), 1)
    given = argument(node, 2, "stride", ())
    stride = kernel if given in ((), None) else pair(given, 1)
    plain = pair(argument(node, 3, "padding", 0), 0) == (0, 0)
    if node.op == _MAXIMUM:
        plain = plain and pair(argument(node, 4, "dilation", 1), 1) == (1, 1)
        plain = plain and argument(node, 5, "ceil_mode", False) is False
    else:
        plain = plain and argument(node, 4, "ceil_mode", False) is False
        plain = plain and argument(node, 6, "divisor_override") is None
    source = index.spec(value_key(node.args[0]))
    large = source.numel >= FEWEST_ELEMENTS and source.dtype == "float32"
    return kernel if plain and large and stride == kernel and prod(kernel) <= MOST_OF_WINDOW else None


def _chain(pool: GraphNode, index: GraphIndex) -> list[GraphNode] | None:
    """The element-wise nodes whose results only the pooling needs, in order; None where there are none."""
    shape = index.shape(value_key(pool.args[0]))
    inside = {pool.name}
    chain: list[GraphNode] = []
    for node in reversed(index.graph.nodes[: index.order[pool.name]]):
        key = (node.name, 0)
        users = index.users(key)
        if not users or index.leaves(key) or any(user.name not in inside for user in users):
            continue
        fits = (
            node.op in EXPRESSIONS and node.outputs[0].shape == shape and node.outputs[0].dtype == "float32"
        )
        if fits and all(_splits(index.shape(other), shape) for other in index.operands(node)):
            inside.add(node.name)
            chain.insert(0, node)
    return chain or None


def _splits(shape: tuple[int, ...], like: tuple[int, ...]) -> bool:
    """Whether an operand is the whole image, or one value for each channel or for all."""
    padded = (1,) * (4 - len(shape)) + shape
    return shape == like or (len(shape) <= 4 and padded[0] == 1 and padded[2:] == (1, 1))


@dataclass
class _Split:
    """Nodes of one pooling over the view of its windows."""

    index: GraphIndex
    window: tuple[int, int]
    taken: set[str]
    known: dict[ValueKey, ValueRef] = field(default_factory=dict[ValueKey, ValueRef])

    def element(self, node: GraphNode) -> list[GraphNode]:
        """The node over the view, behind the views that it needs."""
        made: list[GraphNode] = []
        args = tuple(self._moved(item, made) for item in node.args)
        kwargs = {name: self._moved(item, made) for name, item in node.kwargs.items()}
        spec = node.outputs[0].model_copy(update={"shape": self._shape(node.outputs[0].shape)})
        self.known[node.name, 0] = ValueRef(ref=node.name)
        return [*made, node.model_copy(update={"args": args, "kwargs": kwargs, "outputs": (spec,)})]

    def reduced(self, pool: GraphNode) -> GraphNode:
        """The pooling as a reduction of both dims of a window."""
        operand = self.known[value_key(pool.args[0])]
        op = "aten.amax.default" if pool.op == _MAXIMUM else "aten.mean.dim"
        return pool.model_copy(update={"op": op, "args": (operand, (3, 5)), "kwargs": {}})

    def _shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        n, c, h, w = shape
        height, width = self.window
        return (n, c, h // height, height, w // width, width)

    def _moved(self, value: Argument, made: list[GraphNode]) -> Argument:
        if not isinstance(value, ValueRef):
            return value
        key = (value.ref, value.index)
        if key not in self.known:
            self.known[key] = self._viewed(value, made)
        return self.known[key]

    def _viewed(self, value: ValueRef, made: list[GraphNode]) -> ValueRef:
        """The operand as a view of windows; what has one value for each channel gets dims of size 1."""
        spec = self.index.spec((value.ref, value.index))
        if spec.numel == 1 and len(spec.shape) == 0:
            return value
        padded = (1,) * (4 - len(spec.shape)) + spec.shape
        if padded[2:] == (1, 1):
            shape: tuple[int, ...] = (padded[0], padded[1], 1, 1, 1, 1)
            return self._add(made, value, "aten.view.default", shape, spec, shape)
        shape = self._shape(padded)
        for dim, kept in ((2, shape[2] * shape[3]), (3, shape[4] * shape[5])):
            if kept < padded[dim]:
                padded = (*padded[:dim], kept, *padded[dim + 1 :])
                value = self._add(made, value, "aten.slice.Tensor", padded, spec, dim, 0, kept)
        return self._add(made, value, "aten.view.default", shape, spec, shape)

    def _add(
        self,
        made: list[GraphNode],
        value: ValueRef,
        op: str,
        shape: tuple[int, ...],
        like: TensorSpec,
        *args: Argument,
    ) -> ValueRef:
        name = unused_name(f"{value.ref}_windows", self.taken)
        spec = TensorSpec(name=name, shape=shape, dtype=like.dtype)
        made.append(GraphNode(name=name, op=op, args=(value, *args), outputs=(spec,)))
        return ValueRef(ref=name)
