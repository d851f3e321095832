"""Look-ups over a captured graph: producers, users and types of values."""

from collections.abc import Iterator

from stitch_tools.models.graph import Argument, Graph, GraphInput, GraphNode, ValueRef
from stitch_tools.models.task import TensorSpec

ValueKey = tuple[str, int]
"""Name of the producing node or input, and which of its outputs."""


class GraphIndex:
    """A graph with its edges in both directions."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: dict[str, GraphNode] = {node.name: node for node in graph.nodes}
        self.inputs: dict[str, GraphInput] = {item.name: item for item in graph.inputs}
        self.order: dict[str, int] = {node.name: place for place, node in enumerate(graph.nodes)}
        self._users: dict[ValueKey, list[GraphNode]] = {}
        for node in graph.nodes:
            # Each reader once, also where it reads a value twice (x * x): `sole_user` counts readers, not
            # reads.
            for key in dict.fromkeys(self.operands(node)):
                self._users.setdefault(key, []).append(node)
        self._leaving = {
            (out.value.ref, out.value.index): out.kind for out in graph.outputs if out.value is not None
        }

    def operands(self, node: GraphNode) -> tuple[ValueKey, ...]:
        """Tensor values that `node` reads, in argument order, repeated where it reads one twice."""
        return tuple(references(node))

    def users(self, key: ValueKey) -> list[GraphNode]:
        """Nodes that read the value, in execution order."""
        return self._users.get(key, [])

    def sole_user(self, node: GraphNode) -> GraphNode | None:
        """The one node that reads `node`'s only output; None if it has several or leaves the graph."""
        key = (node.name, 0)
        users = self.users(key)
        return users[0] if len(users) == 1 and len(node.outputs) == 1 and not self.leaves(key) else None

    def leaves(self, key: ValueKey) -> bool:
        """Whether the value is an output of the whole graph."""
        return key in self._leaving

    def spec(self, key: ValueKey) -> TensorSpec:
        """Shape and type of a value."""
        name, which = key
        node = self.nodes.get(name)
        return node.outputs[which] if node is not None else self.inputs[name].spec

    def shape(self, key: ValueKey) -> tuple[int, ...]:
        """Shape of a value."""
        return self.spec(key).shape

    def producer(self, key: ValueKey) -> GraphNode | None:
        """The node that makes the value; None for an input of the graph."""
        return self.nodes.get(key[0])

    def is_constant(self, key: ValueKey) -> bool:
        """Whether the value is a parameter, buffer or lifted constant, known at initialisation."""
        item = self.inputs.get(key[0])
        return item is not None and item.kind != "user"


def references(node: GraphNode) -> Iterator[ValueKey]:
    """The tensor values in a node's arguments, in order."""
    for argument in (*node.args, *node.kwargs.values()):
        yield from _references(argument)


def _references(argument: Argument) -> Iterator[ValueKey]:
    if isinstance(argument, ValueRef):
        yield argument.ref, argument.index
    elif isinstance(argument, tuple):
        for item in argument:
            yield from _references(item)


def value_key(argument: Argument) -> ValueKey:
    """The value that an argument names.

    Raises:
        TypeError: the argument is not a tensor.
    """
    if not isinstance(argument, ValueRef):
        raise TypeError(f"{argument!r} is not a tensor value")
    return argument.ref, argument.index


def argument(node: GraphNode, position: int, name: str, default: Argument = None) -> Argument:
    """The operand that is at `position` or passed by `name`; `default` where the call left it out."""
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)
