"""`stitch-mcp graph`."""

from typing import TYPE_CHECKING

from stitch_mcp.cli.capture import View, capture_command
from stitch_mcp.views.fact_tables import disturbance, graph_sections
from stitch_mcp.views.table import ReportSection

if TYPE_CHECKING:
    from stitch_mcp.api import Captured


def _view(captured: "Captured") -> View:
    fields = {
        "task_id": captured.task.task_id,
        "graph": captured.graph,
        "facts": captured.facts,
        "ceilings": captured.ceilings,
    }
    warned = [*captured.facts.warnings, *disturbance(captured.ceilings)]
    warnings = ReportSection(notes=tuple(f"warning: {text}" for text in warned))
    return fields, [
        *graph_sections(captured.graph, captured.ceilings),
        *([warnings] if warnings.notes else []),
    ]


command = capture_command(
    "graph", "Show the operations of REFERENCE with their work and lower bounds.", _view
)
