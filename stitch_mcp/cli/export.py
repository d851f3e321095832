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
    "--out",
    required=True,
    metavar="PATH",
    help="New folder, whose name is what the package is imported by; for kernelbench a new .py file.",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["module", "kernelbench"]),
    default="module",
    help="A package with the reference's module (default), or one file with a ModelNew.",
)
@workspace_option
@json_option
def command(run: str, out: str, form: str, as_json: bool, **given: Unpack[Settings]) -> int:
    """Write a run's certified program for use without stitch-mcp, with torch alone.

    RUN is a run's id, a unique prefix of it, or `last` (the default); FILE is a certificate. The package's
    module is the reference's own, whose forward is the program's where the guard on shapes, types, device and
    mode lets it, and the eager reference's elsewhere. With --as kernelbench, one file holds the reference and
    a ModelNew for KernelBench's own evaluation, which computes nothing with PyTorch.
    """
    output = CommandOutput("export", as_json=as_json)
    root = load_config(given).workspace
    if form == "kernelbench":
        from stitch_mcp.kernelbench_export import export_kernelbench

        file = export_kernelbench(root, run, out)
        return output.finish(dict(file), [ReportSection(notes=(f"exported: {file.path}",))])
    from stitch_mcp.exports import export_program

    exported = export_program(root, run, out)
    lines = (
        f"exported: {exported.folder}",
        f"use it: from {exported.package} import load, accelerate   (its README.md says how)",
    )
    return output.finish(dict(exported), [ReportSection(notes=lines)])
