"""The reference's forward as data: captured graph, the work of each operation, its shortest time."""

from stitch_tools.graph.build import build_graph, capture_graph
from stitch_tools.graph.cost import OperationWork, distinct_bytes, node_work, references
from stitch_tools.graph.families import family_of

__all__ = [
    "OperationWork",
    "build_graph",
    "capture_graph",
    "distinct_bytes",
    "family_of",
    "node_work",
    "references",
]
