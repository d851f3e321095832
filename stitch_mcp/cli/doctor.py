"""`stitch-mcp doctor`."""

from typing import Unpack

import click

from stitch_mcp.cli.exit_codes import ExitCode
from stitch_mcp.cli.options import json_option, session_options, settings
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import Settings
from stitch_mcp.views.table import ReportSection


@click.command("doctor")
@session_options
@json_option
def command(as_json: bool, **given: Unpack[Settings]) -> int:
    """Show what this machine lacks and how to fix it.

    Exits with 5 if something is missing that --target needs.
    """
    from stitch_mcp.doctor import examine

    config = settings(**given)
    output = CommandOutput("doctor", as_json=as_json)
    report = examine(config, output.progress)
    rows = tuple((item.status, item.name, item.detail) for item in report.items)
    fixes = tuple(f"{item.name}: {item.fix}" for item in report.items if item.fix)
    able = (
        ("solve for cpu", report.can_solve_cpu),
        ("build for cuda", report.can_build_cuda),
        ("measure on cuda", report.can_measure_cuda),
    )
    sections = [
        ReportSection("", ("status", "what", "found"), rows),
        *([ReportSection("what would help", notes=fixes)] if fixes else []),
        ReportSection(
            "this machine can", ("what", "able"), tuple((name, "yes" if can else "no") for name, can in able)
        ),
    ]
    enough = report.can_solve_cpu if config.target == "cpu" else report.can_build_cuda
    return output.finish(dict(report), sections, ExitCode.DONE if enough else ExitCode.ENVIRONMENT)
