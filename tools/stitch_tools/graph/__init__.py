"""The reference's forward as data: captured graph, the work of each operation, its shortest time."""

from stitch_tools.graph.build import build_graph, capture_graph, with_costs
from stitch_tools.graph.cost import Work, distinct_bytes, node_work, references
from stitch_tools.graph.families import Family, base_name, family_of
from stitch_tools.graph.render import render_graph

__all__ = [
    "Family",
    "Work",
    "base_name",
    "build_graph",
    "capture_graph",
    "distinct_bytes",
    "family_of",
    "node_work",
    "references",
    "render_graph",
    "with_costs",
]
