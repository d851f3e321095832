"""`stitch-mcp export`."""

from typing import Unpack

import click

from stitch_mcp.cli.options import json_option, workspace_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import Settings, load_config
from stitch_mcp.views.table import ReportSection


@click.command("export")
@click.argument("run", metavar="[RUN|FILE]", default="last")
@click.option(
    "--out", required=True, metavar="FOLDER", help="New folder; its name is what the package is imported by."
)
@workspace_option
@json_option
def command(run: str, out: str, as_json: bool, **given: Unpack[Settings]) -> int:
    """Write a run's certified program as a Python package that needs only torch.

    RUN is a run's id, a unique prefix of it, or `last` (the default); FILE is a certificate. The package's
    module is the reference's own, whose forward is the program's where the guard on shapes, types, device and
    mode lets it, and the eager reference's elsewhere.
    """
    from stitch_mcp.exports import export_program

    exported = export_program(load_config(given).workspace, run, out)
    lines = (
        f"exported: {exported.folder}",
        f"use it: from {exported.package} import load, accelerate   (its README.md says how)",
    )
    return CommandOutput("export", as_json=as_json).finish(dict(exported), [ReportSection(notes=lines)])
