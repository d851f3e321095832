"""Which nodes share one step: fusion groups, library calls with their epilogues, views, eager nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stitch_planner.stitcher.lower.fusion_rules import classify
from stitch_planner.stitcher.lower.graph_index import GraphIndex, references
from stitch_planner.stitcher.lower.kernel_ir import SCALAR_BYTES
from stitch_planner.stitcher.lower.templates import NOT_MINE, TEMPLATES, Template
from stitch_tools.models.graph import GraphNode


@dataclass(frozen=True)
class Step:
    """Nodes that are computed together."""

    template: Template | None
    """None: eager."""
    nodes: tuple[GraphNode, ...]
    reason: str = ""
    """Why an eager node has no template."""

    @property
    def family(self) -> str:
        """The template's family; `eager` where there is none."""
        return "eager" if self.template is None else self.template.family


NONE: Mapping[str, str] = {}


def partition(
    index: GraphIndex, templates: Sequence[Template] = TEMPLATES, left: Mapping[str, str] = NONE
) -> list[Step]:
    """Steps in an order in which each finds its operands; deterministic.

    Args:
        index: the graph.
        templates: in the order in which they are asked.
        left: nodes that no template is to take, and why.
    """
    return _Partition(index, templates, left).steps()


def choose(node: GraphNode, index: GraphIndex, templates: Sequence[Template]) -> tuple[Template | None, str]:
    """The first template that takes the node, or None and the most telling refusal."""
    # Types are checked here once, so that no template has to repeat it.
    operands = tuple(map(index.spec, references(node)))
    specs = (*node.outputs, *operands)
    # Outputs beside the first are often empty by nature.
    is_empty = not all(spec.numel for spec in (*node.outputs[:1], *operands))
    unknown = {spec.dtype for spec in specs} - set(SCALAR_BYTES)
    if unknown:
        return None, f"no template computes in {', '.join(sorted(unknown))}"
    reason = ""
    for template in templates:
        refusal = template.refuses(node, index)
        if refusal is None and template.kind == "library" and is_empty:
            refusal = "a library call on an empty tensor"  # each library has rules of its own for these
        if refusal is None:
            return template, ""
        if refusal != NOT_MINE:
            reason = refusal
    return None, reason or f"no template for {node.op}"


class _Partition:
    """Groups of node positions, merged greedily in execution order."""

    def __init__(self, index: GraphIndex, templates: Sequence[Template], left: Mapping[str, str]) -> None:
        self.index = index
        self.nodes = list(index.graph.nodes)
        self.place = index.order
        self.templates = templates
        chosen = [
            (None, left[node.name]) if node.name in left else choose(node, index, templates)
            for node in self.nodes
        ]
        self.template = [template for template, _ in chosen]
        self.reason = [reason for _, reason in chosen]
        self.group: list[int] = list(range(len(self.nodes)))
        self.members: dict[int, list[int]] = {i: [i] for i in range(len(self.nodes))}

    def steps(self) -> list[Step]:
        """All groups, ordered."""
        # Library calls first: a pointwise node that follows a product costs nothing in the library's
        # epilogue, and one pass over memory in a kernel of its own.
        self._gather_library_calls()
        self._fuse_elements()
        return [self._step(group) for group in self._ordered()]

    def _step(self, group: int) -> Step:
        members = self.members[group]
        nodes = tuple(self.nodes[i] for i in members)
        anchor = next((i for i in members if _kind(self.template[i]) != "view"), members[0])
        reason = self.reason[anchor] if self.template[anchor] is None else ""
        return Step(self.template[anchor], nodes, reason)

    # ---- library calls ------------------------------------------------------------------------------

    def _gather_library_calls(self) -> None:
        taken: set[int] = set()
        for place, node in enumerate(self.nodes):
            template = self.template[place]
            if template is None or template.kind != "library" or place in taken:
                continue
            # A pattern of several nodes (attention written out) is taken as a whole or not at all.
            gathered = [self.place[item.name] for item in template.gather(node, self.index)]
            if not taken.isdisjoint(gathered) or not self._can_merge(gathered):
                gathered = [place]
            members = self._with_epilogue(template, gathered, taken)
            self._merge(members)
            for item in members:
                self.template[item] = template
            taken.update(members)

    def _with_epilogue(self, template: Template, members: list[int], taken: set[int]) -> list[int]:
        """Members, and as many of the nodes that follow as the call can compute."""
        while True:
            last = self.nodes[members[-1]]
            # A second reader needs the value before the epilogue, which then never exists in memory.
            user = self.index.sole_user(last)
            if user is None or self.place[user.name] in taken:
                return members
            if not template.absorbs([self.nodes[i] for i in members], user, self.index):
                return members
            wider = [*members, self.place[user.name]]
            if not self._can_merge(wider):
                return members
            members = wider

    # ---- fused expressions --------------------------------------------------------------------------

    def _fuse_elements(self) -> None:
        for place, node in enumerate(self.nodes):
            if not self._is_element(place) and not self._is_small_view(place):
                continue
            groups = {self.group[self.place[name]] for name, _ in references(node) if name in self.place}
            for group in sorted(groups, reverse=True):
                if group != self.group[place] and self._is_element(self.members[group][0]):
                    self._try_merge(group, self.group[place])

    def _is_element(self, place: int) -> bool:
        return _kind(self.template[place]) == "element"

    def _is_small_view(self, place: int) -> bool:
        """Whether the node is a view; one that only reshapes per-row values may stay inside a kernel."""
        return _kind(self.template[place]) == "view"

    def _try_merge(self, first: int, second: int) -> None:
        members = sorted((*self.members[first], *self.members[second]))
        if len(members) <= MAX_FUSED and self._fits(members) and self._can_merge(members):
            self._merge(members)

    def _fits(self, members: list[int]) -> bool:
        return classify([self.nodes[i] for i in members], self.index) is not None

    # ---- the graph of groups ------------------------------------------------------------------------

    def _can_merge(self, members: Sequence[int]) -> bool:
        """Whether no path leads out of the merged group and back into it."""
        inside = {self.group[i] for i in members}
        # A path out and back would need the merged group both before and after the group on the path. Walking
        # backwards from the inputs finds such a path, since every path back ends in an input.
        stack = [g for group in inside for g in self._inputs(group) if g not in inside]
        visited: set[int] = set()
        while stack:
            here = stack.pop()
            if here in visited:
                continue
            visited.add(here)
            before = self._inputs(here)
            if not inside.isdisjoint(before):
                return False
            stack.extend(before)
        return True

    def _inputs(self, group: int) -> set[int]:
        inputs: set[int] = set()
        for member in self.members[group]:
            for name, _ in references(self.nodes[member]):
                if name in self.place:
                    inputs.add(self.group[self.place[name]])
        inputs.discard(group)
        return inputs

    def _merge(self, members: Sequence[int]) -> None:
        # The smallest member names the group, so that equal graphs give equal partitions.
        everyone = sorted({m for i in members for m in self.members[self.group[i]]})
        target = everyone[0]
        for member in everyone:
            self.members.pop(self.group[member], None)
        for member in everyone:
            self.group[member] = target
        self.members[target] = everyone

    def _ordered(self) -> list[int]:
        """Groups after their inputs; among those that are ready, the one whose last node comes first."""
        waiting = {group: self._inputs(group) for group in self.members}
        order: list[int] = []
        while waiting:
            ready = [group for group, inputs in waiting.items() if not inputs]
            # Execution order where possible: it keeps lifetimes, and with them the workspace, short.
            chosen = min(ready, key=lambda g: self.members[g][-1])
            order.append(chosen)
            del waiting[chosen]
            for inputs in waiting.values():
                inputs.discard(chosen)
        return order


MAX_FUSED = 64
"""Nodes in one kernel at most: beyond it compile time grows and registers run out."""


def _kind(template: Template | None) -> str:
    return "eager" if template is None else template.kind
