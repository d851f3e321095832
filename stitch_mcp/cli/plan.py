"""`stitch-mcp plan`."""

from typing import TYPE_CHECKING

from stitch_mcp.cli.capture import View, capture_command
from stitch_mcp.views.fact_tables import disturbance, plan_sections
from stitch_mcp.views.table import ReportSection

if TYPE_CHECKING:
    from stitch_mcp.api import Captured


def _view(captured: "Captured") -> View:
    from stitch_mcp.api import plan_reference

    plan = plan_reference(captured)
    fields = {"task_id": captured.task.task_id, "plan": plan, "ceilings": captured.ceilings}
    warnings = tuple(f"warning: {text}" for text in disturbance(captured.ceilings))
    return fields, [
        *plan_sections(plan, captured.ceilings),
        *([ReportSection(notes=warnings)] if warnings else []),
    ]


command = capture_command("plan", "Show how REFERENCE would be fused, with predicted times.", _view)
