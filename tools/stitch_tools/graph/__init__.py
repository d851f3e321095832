"""The reference's forward as data: captured graph, the work of each operation, its shortest time."""

from stitch_tools.graph.build import build_graph, capture_graph

__all__ = ["build_graph", "capture_graph"]
