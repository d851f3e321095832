"""`stitch-mcp graph`."""

from typing import Unpack

import click

from stitch_mcp.cli.options import json_option, parse_overrides, reference_options, session_options
from stitch_mcp.cli.output import Output
from stitch_mcp.config import Settings
from stitch_mcp.report import Section
from stitch_mcp.tables import graph_sections


@click.command("graph")
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
    """Show the operations of REFERENCE with their work and lower bounds."""
    from stitch_mcp.api import capture_reference

    output = Output("graph", as_json=as_json)
    seen = capture_reference(
        reference,
        inputs=inputs,
        overrides=parse_overrides(overrides),
        allow_relaxed=allow_relaxed,
        emit=output.progress,
        **settings,
    )
    fields = {
        "task_id": seen.task.task_id,
        "graph": seen.graph,
        "facts": seen.facts,
        "ceilings": seen.ceilings,
    }
    warnings = Section(notes=tuple(f"warning: {text}" for text in seen.facts.warnings))
    return output.finish(fields, [*graph_sections(seen.graph), *([warnings] if warnings.notes else [])])
