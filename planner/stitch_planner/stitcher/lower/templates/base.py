"""What a lowering template is: one family of nodes, how they are recognised, and how they become kernels.

A family is one file in this folder and one line in `templates/__init__.py`. Templates are asked in order; the
first that does not refuse a node lowers it. Three kinds, which the planner treats differently:

    view      moves no data: binds its output to another window on its input's buffer
    element   scalar expressions and reductions; the planner fuses neighbours into one kernel
    library   one call, to which the planner may add the nodes that follow (`absorbs`)
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from stitch_planner.stitcher.lower.graph_index import GraphIndex
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_tools.models.graph import GraphNode

NOT_MINE = ""
"""Refusal without a reason: the operation belongs to another family."""


class Template(Protocol):
    """One family of operations."""

    family: str
    """Name in plans, reports and generated comments: gemm, conv, rows, pointwise, view, ..."""
    kind: Literal["view", "element", "library"]

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None when this template lowers `node`; else why not (`NOT_MINE`: an op of another family)."""
        ...

    def gather(self, node: GraphNode, index: GraphIndex) -> tuple[GraphNode, ...]:
        """The nodes, in execution order, that one call computes when it starts at `node`; at least that one.

        Values made inside must not be used outside, except for the last node's.
        """
        ...

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """Whether one call can compute `candidate` after `nodes` (a library step so far, in order).

        The planner asks only about the sole user of the last node's output, and has made sure that the
        candidate's other operands do not depend on `nodes`.
        """
        ...

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """Adds kernels that compute `nodes` (one step of the plan) and binds every value that leaves it."""
        ...


class LibraryTemplate:
    """What most library families share: one node a call, nothing absorbed."""

    kind: Literal["view", "element", "library"] = "library"

    def gather(self, node: GraphNode, index: GraphIndex) -> tuple[GraphNode, ...]:
        """The node alone."""
        return (node,)

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """False."""
        return False
