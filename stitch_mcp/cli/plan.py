"""`stitch-mcp plan`."""

from typing import TYPE_CHECKING

from stitch_mcp.cli.capture import View, capture_command
from stitch_mcp.views.fact_tables import disturbance, plan_sections
from stitch_mcp.views.table import ReportSection

if TYPE_CHECKING:
    from stitch_mcp.api import Captured


def _view(seen: "Captured") -> View:
    from stitch_mcp.api import plan_reference

    plan = plan_reference(seen)
    fields = {"task_id": seen.task.task_id, "plan": plan, "ceilings": seen.ceilings}
    warnings = tuple(f"warning: {text}" for text in disturbance(seen.ceilings))
    return fields, [
        *plan_sections(plan, seen.ceilings),
        *([ReportSection(notes=warnings)] if warnings else []),
    ]


command = capture_command("plan", "Show how REFERENCE would be fused, with predicted times.", _view)
