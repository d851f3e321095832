"""`stitch-mcp ceilings`."""

from typing import Unpack

import click

from stitch_mcp.cli.options import json_option, session_options
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import Settings
from stitch_mcp.views.fact_tables import ceilings_sections


@click.command("ceilings")
@click.option("--refresh", is_flag=True, help="Measure again instead of using cached figures.")
@session_options
@json_option
def command(refresh: bool, as_json: bool, **settings: Unpack[Settings]) -> int:
    """Measure the target device's peak bandwidths and arithmetic rates."""
    from stitch_mcp.api import measure_device

    output = CommandOutput("ceilings", as_json=as_json)
    ceilings = measure_device(refresh=refresh, emit=output.progress, **settings)
    return output.finish(dict(ceilings), ceilings_sections(ceilings))
