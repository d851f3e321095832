"""`stitch-mcp graph`."""

from typing import TYPE_CHECKING

from stitch_mcp.cli.capture import View, capture_command
from stitch_mcp.views.fact_tables import disturbance, graph_sections
from stitch_mcp.views.table import ReportSection

if TYPE_CHECKING:
    from stitch_mcp.api import Captured


def _view(seen: "Captured") -> View:
    fields = {
        "task_id": seen.task.task_id,
        "graph": seen.graph,
        "facts": seen.facts,
        "ceilings": seen.ceilings,
    }
    warned = [*seen.facts.warnings, *disturbance(seen.ceilings)]
    warnings = ReportSection(notes=tuple(f"warning: {text}" for text in warned))
    return fields, [*graph_sections(seen.graph, seen.ceilings), *([warnings] if warnings.notes else [])]


command = capture_command(
    "graph", "Show the operations of REFERENCE with their work and lower bounds.", _view
)
