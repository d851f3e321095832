"""A forward with eager nodes, cut into native segments and PyTorch operations between them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stitch_planner.stitcher.graph.partition import Step
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, references
from stitch_tools.models.graph import Argument, Graph, GraphInput, GraphNode, GraphOutput, ValueRef
from stitch_tools.models.task import TensorSpec


@dataclass(frozen=True)
class Part:
    """Consecutive steps of one kind."""

    native: bool
    steps: tuple[Step, ...]

    @property
    def nodes(self) -> tuple[GraphNode, ...]:
        """All nodes, in order of execution."""
        return tuple(node for step in self.steps for node in step.nodes)


def cut(steps: Sequence[Step], index: GraphIndex) -> list[Part]:
    """Parts in an order of execution with as few changes between native and eager as a greedy choice finds.

    A native part that would only make views is left to PyTorch.
    """
    waiting = list(steps)
    done: set[str] = set()
    parts: list[Part] = []
    # Native first: what an eager node needs is then already there, and the first native part is as long as
    # possible.
    native = True
    while waiting:
        taken: list[Step] = []
        progress = True
        while progress:
            ready = [s for s in _candidates(waiting, native) if _is_ready(s, done, index)]
            progress = bool(ready)
            for step in ready:
                waiting.remove(step)
                taken.append(step)
                done.update(node.name for node in step.nodes)
        if taken:
            # A segment of views alone would copy its inputs through the ABI only to return them.
            parts.append(Part(native and any(_computes(step) for step in taken), tuple(taken)))
        native = not native
    return parts


def _candidates(waiting: Sequence[Step], native: bool) -> Sequence[Step]:
    """Steps of one kind that may come next. Eager ones keep their order: some draw random numbers."""
    fitting = [step for step in waiting if _is_native(step) == native]
    return fitting if native else fitting[:1]


def _is_native(step: Step) -> bool:
    return step.template is not None


def _computes(step: Step) -> bool:
    return step.template is not None and step.template.kind != "view"


def _is_ready(step: Step, done: set[str], index: GraphIndex) -> bool:
    inside = {node.name for node in step.nodes}
    needed = {name for node in step.nodes for name, _ in references(node) if name in index.nodes}
    return needed <= done | inside


def subgraph(
    part: Part, graph: Graph, index: GraphIndex, dense: Collection[ValueKey] = ()
) -> tuple[Graph, list[ValueKey], list[ValueKey]]:
    """The part as a graph of its own, and the values that it takes from outside and gives back.

    `dense` are the values that native parts made: these lie row-major, however the reference had them.
    """
    inside = {node.name for node in part.nodes}
    read = dict.fromkeys(key for node in part.nodes for key in references(node) if key[0] not in inside)
    taken = [key for key in read if not index.is_constant(key)]
    given = [key for key in _made(part.nodes) if index.leaves(key) or _used_outside(key, inside, index)]
    # Inputs of a graph have one output, so the second output of a node needs a name of its own.
    renamed = {key: f"{key[0]}_{key[1]}" if key[1] else key[0] for key in taken}
    inputs = [
        GraphInput(name=renamed[key], kind="user", target=str(place), spec=_spec(key, index, dense))
        for place, key in enumerate(taken)
    ]
    constants = [index.inputs[key[0]] for key in read if index.is_constant(key)]
    outputs = tuple(GraphOutput(value=ValueRef(ref=name, index=place)) for name, place in given)
    nodes = tuple(_renamed(node, renamed) for node in part.nodes)
    inner = Graph(
        source=graph.source, inputs=(*inputs, *constants), nodes=nodes, outputs=outputs, mode=graph.mode
    )
    return inner, taken, given


def _spec(key: ValueKey, index: GraphIndex, dense: Collection[ValueKey]) -> TensorSpec:
    """Type and strides of a value that a segment takes."""
    spec = index.spec(key)
    # Of what PyTorch computes the strides are a good guess, no promise, and 0 would be one: see InputType.
    repeats = key[0] in index.nodes and spec.stride is not None and 0 in spec.stride
    return spec.model_copy(update={"stride": None}) if repeats or key in dense else spec


def _made(nodes: Sequence[GraphNode]) -> list[ValueKey]:
    return [(node.name, place) for node in nodes for place in range(len(node.outputs))]


def _used_outside(key: ValueKey, inside: set[str], index: GraphIndex) -> bool:
    return any(user.name not in inside for user in index.users(key))


def _renamed(node: GraphNode, renamed: dict[ValueKey, str]) -> GraphNode:
    """The node reading values from outside under their names as inputs (output 0 of an input)."""

    def turn(value: Argument) -> Argument:
        if isinstance(value, ValueRef):
            key = (value.ref, value.index)
            return ValueRef(ref=renamed[key]) if key in renamed else value
        return tuple(turn(item) for item in value) if isinstance(value, tuple) else value

    update = {"args": turn(node.args), "kwargs": {name: turn(item) for name, item in node.kwargs.items()}}
    return node.model_copy(update=update)
