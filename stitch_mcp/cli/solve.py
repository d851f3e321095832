"""`stitch-mcp solve`."""

from typing import Unpack

import click

from stitch_mcp.cli.exit_codes import for_result
from stitch_mcp.cli.interrupt import stop_on_interrupt
from stitch_mcp.cli.options import (
    accept_option,
    json_option,
    parse_overrides,
    reference_options,
    session_options,
    speedup_option,
)
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import Settings
from stitch_mcp.printed_commands import this_command
from stitch_mcp.verdicts import result_fields
from stitch_mcp.views.fact_tables import solve_sections


@click.command("solve")
@click.argument("reference", required=False)
@click.option(
    "--resume",
    metavar="RUN",
    help="Instead of REFERENCE: resume a run (its id, a unique prefix, or `last`).",
)
@click.option(
    "--quick", is_flag=True, help="No sanitizers, fewest rounds, only torch.compile's default mode."
)
@speedup_option
@accept_option
@reference_options
@session_options
@json_option
def command(
    reference: str | None,
    resume: str | None,
    quick: bool,
    inputs: str | None,
    overrides: tuple[str, ...],
    allow_relaxed: bool,
    as_json: bool,
    **given: Unpack[Settings],
) -> int:
    """Make REFERENCE faster: capture, plan, write native code, build, check, time, certify.

    REFERENCE is a KernelBench-style file, path.py:Object, or a task.toml.
    """
    from stitch_mcp.api import solve

    output = CommandOutput("solve", as_json=as_json)
    with stop_on_interrupt() as stop:
        result = solve(
            reference,
            resume=resume,
            quick=quick,
            inputs=inputs,
            overrides=parse_overrides(overrides),
            allow_relaxed=allow_relaxed,
            emit=output.progress,
            stop=stop,
            **given,
        )
    # A finished run that is resumed shows what it found then.
    again = "" if resume else this_command()
    code = for_result(result.verdict, result.bench, result.min_speedup)
    return output.finish(result_fields(result), solve_sections(result, again), code)
