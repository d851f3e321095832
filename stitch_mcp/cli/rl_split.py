"""`stitch-mcp rl split`."""

from pathlib import Path

import click

from stitch_mcp.cli.options import json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.table import ReportSection


@click.command("split")
@click.argument("samples", type=click.Path(path_type=Path))
@click.option("--heldout-share", default=0.1, metavar="X", help="Share of families held out (default: 0.1).")
@click.option("--salt", default="", metavar="TEXT", help="Another text gives another split.")
@click.option(
    "--benchmark",
    "benchmarks",
    multiple=True,
    metavar="PATH",
    type=click.Path(exists=True, path_type=Path),
    help="Files or folders whose near duplicates are counted; may be repeated.",
)
@click.option("--out", required=True, metavar="DIR", type=click.Path(path_type=Path), help="Where both go.")
@json_option
def command(
    samples: Path, heldout_share: float, salt: str, benchmarks: tuple[Path, ...], out: Path, as_json: bool
) -> int:
    """Split SAMPLES by problem family into train.jsonl and heldout.jsonl, with a leakage report."""
    from stitch_mcp.rl.data.near_duplicates import read_fingerprints
    from stitch_mcp.rl.data.samples import read_samples, write_samples
    from stitch_mcp.rl.data.splitting import split_samples

    output = CommandOutput("rl split", as_json=as_json)
    known = read_fingerprints(benchmarks)
    train, heldout, report = split_samples(read_samples(samples), heldout_share, salt=salt, benchmarks=known)
    out.mkdir(parents=True, exist_ok=True)
    write_samples(out / "train.jsonl", train)
    write_samples(out / "heldout.jsonl", heldout)
    (out / "leakage.json").write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    rows = tuple((name, str(value)) for name, value in report.model_dump().items())
    return output.finish(dict(report), [ReportSection("", ("leakage", "count"), rows, notes=(f"in {out}",))])
