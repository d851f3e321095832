"""`stitch-mcp rl export`."""

from pathlib import Path
from typing import cast

import click

from stitch_mcp.cli.options import json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.table import ReportSection


@click.command("export")
@click.argument("samples", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "how",
    required=True,
    type=click.Choice(["prompts", "trl", "verl", "sft"]),
    help="prompts: for `rl train`; sft: the best answers, as conversations.",
)
@click.option(
    "--least-speedup", default=1.05, metavar="X", help="Slowest answer that sft keeps (default: 1.05)."
)
@click.option("--license", "license_name", default="other", help="Of the dataset card (default: other).")
@click.option("--out", required=True, metavar="FILE", type=click.Path(path_type=Path), help="JSON lines.")
@json_option
def command(
    samples: Path, how: str, least_speedup: float, license_name: str, out: Path, as_json: bool
) -> int:
    """Write SAMPLES for a trainer, with a dataset card beside them."""
    from stitch_mcp.rl.data.exporting import ExportFormat, dataset_card, export_samples
    from stitch_mcp.rl.data.samples import read_samples

    output = CommandOutput("rl export", as_json=as_json)
    rows = read_samples(samples)
    result = export_samples(rows, cast("ExportFormat", how), out, least_speedup=least_speedup)
    # Not README.md: that of the user's own folder would be lost.
    out.with_suffix(".card.md").write_text(dataset_card(rows, license_name), encoding="utf-8")
    notes = (f"{result.rows} rows written, {result.left_out} samples left out: {result.path}",)
    return output.finish(dict(result), [ReportSection(notes=notes)])
