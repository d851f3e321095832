"""Pieces of a library call's text that templates of both targets write alike."""

from collections.abc import Sequence

from stitch_planner.stitcher.graph.graph_index import value_key
from stitch_planner.stitcher.lower.kernel_ir import Pointer
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_tools.models.graph import Argument, GraphNode


def flag(value: bool) -> str:
    """A C++ bool."""
    return "true" if value else "false"


def braced(values: Sequence[int]) -> str:
    """A braced list of numbers."""
    return "{" + ", ".join(map(str, values)) + "}"


def site(node: GraphNode) -> str:
    """Where the node stands in the reference, for comments: its module's path, else its own name."""
    return node.module_path or node.name


def optional(value: Argument, lowering: Lowering) -> Pointer | str:
    """The address of a dense tensor that the call may leave out."""
    return "nullptr" if value is None else Pointer(lowering.dense(value_key(value)))


def followers(nodes: Sequence[GraphNode]) -> str:
    """The operations behind a step's first node, for its comment."""
    return "".join(f", {node.op.split('.')[1]}" for node in nodes[1:])


COLUMNS = 110


def wrapped(statement: str, indent: int) -> list[str]:
    """A statement in lines that end behind commas and fit behind `indent` columns, where commas allow it."""
    lines: list[str] = []
    line, *pieces = statement.split(", ")
    for piece in pieces:
        if len(line) + len(piece) + indent + 3 > COLUMNS:
            lines.append(f"{line},")
            line = f"    {piece}"
        else:
            line = f"{line}, {piece}"
    return [*lines, line]
