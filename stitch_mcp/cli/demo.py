"""`stitch-mcp demo`."""

from importlib.resources import files
from typing import Unpack

import click

from stitch_mcp.cli.exit_codes import for_result
from stitch_mcp.cli.interrupt import stop_on_interrupt
from stitch_mcp.cli.options import json_option, session_options
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import Settings
from stitch_mcp.printed_commands import bench_command
from stitch_mcp.verdicts import result_fields
from stitch_mcp.views.fact_tables import demo_sections


@click.command("demo")
@session_options
@json_option
def command(as_json: bool, **given: Unpack[Settings]) -> int:
    """Solve a packaged example from end to end: capture, plan, stitch, build, check, time, certify."""
    from stitch_mcp.demo import EXAMPLE, solve_demo

    output = CommandOutput("demo", as_json=as_json)
    with stop_on_interrupt() as stop:
        result = solve_demo(emit=output.progress, stop=stop, **given)
    example = str(files("stitch_mcp") / "examples" / EXAMPLE)
    sections = demo_sections(result, bench_command(example, result.run_id, **given))
    return output.finish(result_fields(result), sections, for_result(result.verdict, result.bench, None))
