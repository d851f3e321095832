"""`stitch-mcp plan`."""

from typing import Unpack

import click

from stitch_mcp.cli.options import json_option, parse_overrides, reference_options, session_options
from stitch_mcp.cli.output import Output
from stitch_mcp.config import Settings
from stitch_mcp.tables import plan_sections


@click.command("plan")
@click.argument("reference")
@reference_options
@session_options
@json_option
def command(
    reference: str,
    inputs: str | None,
    overrides: tuple[str, ...],
    allow_relaxed: bool,
    as_json: bool,
    **settings: Unpack[Settings],
) -> int:
    """Show how REFERENCE would be fused, with predicted times."""
    from stitch_mcp.api import capture_reference, plan_reference

    output = Output("plan", as_json=as_json)
    seen = capture_reference(
        reference,
        inputs=inputs,
        overrides=parse_overrides(overrides),
        allow_relaxed=allow_relaxed,
        emit=output.progress,
        **settings,
    )
    plan = plan_reference(seen)
    return output.finish({"task_id": seen.task.task_id, "plan": plan}, plan_sections(plan))
