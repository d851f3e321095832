"""What a step's comment says of its nodes."""

from collections.abc import Sequence

from stitch_tools.models.graph import GraphNode


def site(node: GraphNode) -> str:
    """Where the node stands in the reference: its module's path, else its own name."""
    return node.module_path or node.name


def followers(nodes: Sequence[GraphNode]) -> str:
    """The operations behind a step's first node."""
    return "".join(f", {node.op.split('.')[1]}" for node in nodes[1:])
