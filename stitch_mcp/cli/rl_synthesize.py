"""`stitch-mcp rl synthesize`."""

from pathlib import Path

import click

from stitch_mcp.cli.options import json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.table import ReportSection


@click.command("synthesize")
@click.option("--count", default=100, metavar="N", help="Tasks that are wanted (default: 100).")
@click.option("--seed", default=0, metavar="N", help="Equal seeds give equal samples (default: 0).")
@click.option(
    "--away-from",
    "benchmarks",
    multiple=True,
    metavar="PATH",
    type=click.Path(exists=True, path_type=Path),
    help="A benchmark's file or folder that no task may be close to; may be repeated.",
)
@click.option("--out", required=True, metavar="DIR", type=click.Path(path_type=Path), help="Where tasks go.")
@json_option
def command(count: int, seed: int, benchmarks: tuple[Path, ...], out: Path, as_json: bool) -> int:
    """Sample new tasks, run each, and keep those that pass every filter."""
    from stitch_mcp.config import configure
    from stitch_mcp.rl.data.near_duplicates import read_fingerprints
    from stitch_mcp.rl.data.synthesis import Synthesizer

    output = CommandOutput("rl synthesize", as_json=as_json)
    out.mkdir(parents=True, exist_ok=True)
    config = configure({"workspace": str(out), "threads": 1, "target": "cpu"})
    known = read_fingerprints(benchmarks)

    def say(accepted: int, sampled: int) -> None:
        if accepted % 50 == 0:
            output.progress(f"{accepted} of {count} accepted, {sampled} sampled")

    with Synthesizer(config, out, known) as synthesizer:
        report = synthesizer.make(count, seed, most_tries=20 * count, emit=say)
    rows = tuple((name, str(number)) for name, number in sorted(report.rejected.items()))
    (out / "report.json").write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    notes = (
        f"{report.accepted} of {report.sampled} samples accepted, {report.families} families",
        f"in {out}",
    )
    section = ReportSection("", ("rejected as", "samples"), rows, notes=notes)
    return output.finish(dict(report), [section], 0 if report.accepted == count else 3)
