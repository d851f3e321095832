"""Three lower bounds of one forward from its captured graph, and the traffic that fusing could save."""

from dataclasses import dataclass
from typing import cast

from stitch_tools.graph.bounds import min_time_us
from stitch_tools.graph.cost import OperationWork
from stitch_tools.graph.families import family_of
from stitch_tools.models.graph import Ceilings, Graph, GraphNode, ValueRef
from stitch_tools.models.profile import LowerBounds
from stitch_tools.models.task import Contract


@dataclass(frozen=True)
class GraphTraffic:
    """Bytes that move between operations, and those that have to move in any case."""

    moved_bytes: int
    """Read and written by all operations one by one."""
    compulsory_bytes: int
    """Inputs, weights and outputs, each once."""

    @property
    def between_bytes(self) -> int:
        """What a program of one kernel would not move."""
        return max(0, self.moved_bytes - self.compulsory_bytes)


def graph_traffic(graph: Graph) -> GraphTraffic:
    """The traffic of one forward."""
    used = {row.ref for node in graph.nodes for row in _references((node.args, tuple(node.kwargs.values())))}
    entering = sum(row.spec.nbytes for row in graph.inputs if row.name in used)
    by_name = {node.name: node for node in graph.nodes}
    leaving = 0
    for output in graph.outputs:
        node = by_name.get(output.value.ref) if output.value is not None else None
        if node is not None and output.value is not None:
            leaving += node.outputs[output.value.index].nbytes
    moved = sum(node.bytes_read + node.bytes_written for node in graph.nodes)
    return GraphTraffic(moved, min(moved, entering + leaving))


def lower_bounds(graph: Graph, ceilings: Ceilings, contract: Contract) -> LowerBounds:
    """The bounds of a costed graph: each operation alone, all in one, and with the last-level cache."""
    uncached = ceilings.model_copy(update={"cache_bytes_per_s": None})
    flat = _without_launch(graph, uncached, contract)
    launches = sum(1 for node in graph.nodes if _works(node))
    arithmetic = _without_launch(graph, ceilings, contract, traffic=False)
    compulsory = graph_traffic(graph).compulsory_bytes / ceilings.copy_bytes_per_s * 1e6
    return LowerBounds(
        unfused_us=flat + launches * ceilings.launch_us,
        fused_us=max(compulsory, arithmetic) + ceilings.launch_us,
        cache_aware_us=_without_launch(graph, ceilings, contract) + launches * ceilings.launch_us,
    )


def node_bound_us(node: GraphNode, ceilings: Ceilings, contract: Contract, *, traffic: bool = True) -> float:
    """The shortest time of one operation without its launch; of its arithmetic alone without `traffic`."""
    if not _works(node):
        return 0.0
    # A byte keeps an operation without traffic apart from one that does nothing at all.
    read, written = (node.bytes_read, node.bytes_written) if traffic else (1, 0)
    work = OperationWork(node.flops, read, written)
    dtype = node.outputs[0].dtype if node.outputs else ""
    return min_time_us(work, family_of(node.op), ceilings, contract, dtype) - ceilings.launch_us


def _without_launch(graph: Graph, ceilings: Ceilings, contract: Contract, *, traffic: bool = True) -> float:
    return sum(node_bound_us(node, ceilings, contract, traffic=traffic) for node in graph.nodes)


def _works(node: GraphNode) -> bool:
    return bool(node.flops or node.bytes_read or node.bytes_written)


def _references(value: object) -> list[ValueRef]:
    if isinstance(value, ValueRef):
        return [value]
    if isinstance(value, tuple):
        return [row for item in cast("tuple[object, ...]", value) for row in _references(item)]
    return []
