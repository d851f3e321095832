"""What the operations of a step have to move and compute at least, whoever groups them into steps."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stitch_planner.plan import PlanStep
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, references
from stitch_tools.graph.bounds import min_time_us
from stitch_tools.graph.cost import OperationWork, distinct_bytes
from stitch_tools.graph.families import base_name, family_of
from stitch_tools.models.graph import Ceilings, Graph, GraphNode
from stitch_tools.models.task import Contract

_GATHERS = ("index", "index_select", "gather", "take", "take_along_dim", "embedding")
"""Operations that read no more of their first operand than they write."""
_BROADCAST = "broadcast_tensors"


def is_view(node: GraphNode) -> bool:
    """Whether the operation only looks at its operand in another way, so that it needs no step."""
    return family_of(node.op) == "view"


@dataclass(frozen=True)
class ValueRead:
    """One use of a tensor that lies in memory."""

    base: ValueKey
    """The tensor behind all views."""
    chain: tuple[ValueKey, ...]
    """The operand, the views that lead to it, and `base` last."""
    bytes: int
    """What has to be read at least: a slice, or what a gather picks."""


class StepWork:
    """The work of groups of operations of one graph. Views cost nothing and are looked through."""

    def __init__(self, graph: Graph) -> None:
        self.index = GraphIndex(graph)
        self._traced: dict[ValueKey, ValueRead] = {}
        self.made: dict[str, ValueKey] = {
            value_name((node.name, place)): (node.name, place)
            for node in graph.nodes
            for place in range(len(node.outputs))
        }
        """Every value that an operation makes, by its name in plans."""
        self._reads: dict[str, tuple[ValueRead, ...]] = {
            node.name: self._node_reads(node) for node in graph.nodes if not is_view(node)
        }
        self._readers: dict[ValueKey, list[tuple[str, int]]] = {}
        for name, reads in self._reads.items():
            for read in reads:
                self._readers.setdefault(read.base, []).append((name, read.bytes))
        for out in graph.outputs:
            if out.value is not None:
                read = self.traced((out.value.ref, out.value.index))
                self._readers.setdefault(read.base, []).append(("", read.bytes))

    @property
    def required(self) -> tuple[str, ...]:
        """The operations that some step has to compute: all but views."""
        return tuple(self._reads)

    def traced(self, key: ValueKey) -> ValueRead:
        """The tensor behind a value, through all views."""
        if key not in self._traced:
            self._traced[key] = self._trace(key)
        return self._traced[key]

    def _trace(self, key: ValueKey) -> ValueRead:
        chain, least = [key], distinct_bytes(self.index.spec(key))
        while (node := self.index.producer(key)) is not None and is_view(node):
            operands = self.index.operands(node)
            if not operands:
                break
            key = operands[key[1] if base_name(node.op) == _BROADCAST else 0]
            chain.append(key)
            least = min(least, distinct_bytes(self.index.spec(key)))
        return ValueRead(key, tuple(chain), least)

    def node_reads(self, name: str) -> tuple[ValueRead, ...]:
        """What an operation reads, each operand once; nothing for a view."""
        return self._reads.get(name, ())

    def reads(self, nodes: Iterable[str]) -> list[ValueRead]:
        """What a step with these operations reads of others, and of the graph's inputs."""
        inside = set(nodes)
        everything = (read for name in inside for read in self.node_reads(name))
        outside = {read.chain: read for read in everything if read.base[0] not in inside}
        # A set has no order; plans and prompts have to be the same each time.
        return sorted(outside.values(), key=lambda read: (self.index.order.get(read.base[0], -1), read.chain))

    def writes(self, nodes: Iterable[str]) -> dict[ValueKey, int]:
        """The values that leave such a step, and how many of their bytes others read at least."""
        inside = set(nodes)
        written: dict[ValueKey, int] = {}
        for name in sorted(inside & set(self._reads), key=self.index.order.__getitem__):
            for place, spec in enumerate(self.index.nodes[name].outputs):
                used = [size for user, size in self._readers.get((name, place), ()) if user not in inside]
                if used:
                    written[name, place] = min(distinct_bytes(spec), sum(used))
        return written

    def bytes(self, nodes: Iterable[str]) -> tuple[int, int]:
        """Bytes that such a step reads and writes at least; what stays inside counts nothing."""
        names = set(nodes)
        read: dict[ValueKey, int] = {}
        for one in self.reads(names):
            read[one.base] = read.get(one.base, 0) + one.bytes
        # Two views of one tensor may overlap: all of them together are no more than the tensor.
        whole = sum(min(size, distinct_bytes(self.index.spec(base))) for base, size in read.items())
        return whole, sum(self.writes(names).values())

    def lower_bound_us(
        self, nodes: Iterable[str], contract: Contract, ceilings: Ceilings | None
    ) -> float | None:
        """The time that such a step takes at least, without a launch; None where ceilings are not certain.

        A rate that was measured beside other work is too low, and no bound follows from it.
        """
        if ceilings is None or ceilings.disturbed:
            return None
        names = [name for name in nodes if name in self._reads]
        read, written = self.bytes(names)
        work = OperationWork(0, read, written)
        traffic = min_time_us(work, "arithmetic", ceilings, contract, "") - ceilings.launch_us
        products = 0.0
        for node in map(self.index.nodes.__getitem__, names):
            alone = OperationWork(node.flops, 0, 0)
            least = min_time_us(alone, family_of(node.op), ceilings, contract, node.outputs[0].dtype)
            products += max(0.0, least - ceilings.launch_us)
        return max(0.0, traffic, products)

    def _node_reads(self, node: GraphNode) -> tuple[ValueRead, ...]:
        name = base_name(node.op)
        if family_of(node.op) == "constant" or name.endswith("_like"):
            return ()
        result: dict[ValueKey, ValueRead] = {}
        for place, key in enumerate(references(node)):
            read = self.traced(key)
            if place == 0 and name in _GATHERS:
                picked = sum(spec.nbytes for spec in node.outputs)
                read = ValueRead(read.base, read.chain, min(read.bytes, picked))
            result.setdefault(key, read)
        return tuple(result.values())


def value_name(key: ValueKey) -> str:
    """A value's name in a plan: that of its node or input, and which output where it is not the first."""
    return key[0] if key[1] == 0 else f"{key[0]}.{key[1]}"


def step_of_node(steps: Iterable[PlanStep]) -> Mapping[str, int]:
    """Which step computes an operation, by place; the first where there are several."""
    result: dict[str, int] = {}
    for place, step in enumerate(steps):
        for name in step.nodes:
            result.setdefault(name, place)
    return result
