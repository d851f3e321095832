"""`stitch-mcp plan`."""

from typing import TYPE_CHECKING

from stitch_mcp.cli.capture import View, capture_command
from stitch_mcp.tables import plan_sections

if TYPE_CHECKING:
    from stitch_mcp.api import Captured


def _view(seen: "Captured") -> View:
    from stitch_mcp.api import plan_reference

    plan = plan_reference(seen)
    return {"task_id": seen.task.task_id, "plan": plan}, plan_sections(plan)


command = capture_command("plan", "Show how REFERENCE would be fused, with predicted times.", _view)
