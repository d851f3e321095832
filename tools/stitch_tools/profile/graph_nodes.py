"""Which operation of the captured graph each operator call of a recording is, and how long each one takes.

Operators that a module calls itself are the graph's nodes of that module, in the same order: capturing does
not take them apart. Both lists are aligned by name, so that what one of them lacks (a dropout that does
nothing, an assertion) shifts nothing.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from stitch_tools.graph.lower_bounds import node_bound_us
from stitch_tools.models.graph import Ceilings, Graph, GraphNode
from stitch_tools.models.profile import NodeTime
from stitch_tools.models.task import Contract
from stitch_tools.profile.host_ranges import OperatorCall

MOST_NODES = 200
_MOST_ALIGNED = 3000
"""Lists of one module that differ are not aligned beyond this length: it takes quadratic time."""


def match_nodes(calls: Sequence[OperatorCall], graph: Graph) -> dict[int, GraphNode]:
    """By position among `calls`, the node that the call is; calls that no node stands for are missing."""
    called: defaultdict[str, list[int]] = defaultdict(list)
    for position, call in enumerate(calls):
        called[call.module].append(position)
    nodes: defaultdict[str, list[GraphNode]] = defaultdict(list)
    for node in graph.nodes:
        nodes[node.module_path].append(node)
    result: dict[int, GraphNode] = {}
    for module, positions in called.items():
        mine = nodes.get(module, [])
        names = [_bare(calls[position].name) for position in positions]
        for at, of in _aligned(names, [_bare(node.op) for node in mine]):
            result[positions[at]] = mine[of]
    return result


def _bare(name: str) -> str:
    """The operator's name in both spellings: aten::relu_ and aten.relu.default are one."""
    words = re.split(r"::|\.", name)
    return words[min(1, len(words) - 1)].rstrip("_")


def _aligned(names: list[str], others: list[str]) -> Iterable[tuple[int, int]]:
    """Pairs of positions with the same name, in the order of both."""
    if names == others:
        return enumerate(range(len(names)))
    if max(len(names), len(others)) > _MOST_ALIGNED:
        return ()
    blocks = SequenceMatcher(None, names, others, autojunk=False).get_matching_blocks()
    return [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]


def node_times(
    spent_ns: Mapping[int, float], launches: Mapping[int, int] | None, nodes: Mapping[int, GraphNode]
) -> tuple[NodeTime, ...]:
    """The nodes by time, the longest first.

    Args:
        spent_ns: nanoseconds of an iteration by position of the call.
        launches: kernels, copies and fills by position of the call; None on a CPU.
        nodes: from `match_nodes`.
    """
    rows = [
        NodeTime(
            node=node.name,
            op=node.op,
            module=node.module_path,
            time_us=spent_ns[position] / 1e3,
            launches=None if launches is None else launches.get(position, 0),
        )
        for position, node in nodes.items()
        if spent_ns.get(position)
    ]
    rows.sort(key=lambda row: -row.time_us)
    return tuple(rows[:MOST_NODES])


def with_bounds(
    rows: Sequence[NodeTime], graph: Graph, ceilings: Ceilings | None, contract: Contract
) -> tuple[NodeTime, ...]:
    """The nodes with the shortest time that their bytes and operations allow, where ceilings are known."""
    if ceilings is None:
        return tuple(rows)
    by_name = {node.name: node for node in graph.nodes}
    return tuple(
        row.model_copy(update={"bound_us": node_bound_us(by_name[row.node], ceilings, contract)})
        for row in rows
    )
