"""`stitch-mcp report`."""

from typing import Unpack

import click

from stitch_mcp.cli.options import json_option, workspace_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import Settings
from stitch_mcp.views.table import ReportSection


@click.command("report")
@click.argument("run", default="last")
@click.option(
    "--out",
    "--output",
    "output",
    metavar="FILE",
    help="Where to write it (default: report.html in the run's folder).",
)
@workspace_option
@json_option
def command(run: str, output: str | None, as_json: bool, **settings: Unpack[Settings]) -> int:
    """Write the report of a run: one HTML file that needs nothing else.

    RUN is its id, a unique prefix of it, or `last` (the default).
    """
    from stitch_mcp.report.report_file import write_report

    screen = CommandOutput("report", as_json=as_json)
    report = write_report(run, output=output, **settings)
    notes = (f"report: {report.path}", *(f"missing: {text}" for text in report.missing))
    return screen.finish(dict(report), [ReportSection(notes=notes)])
