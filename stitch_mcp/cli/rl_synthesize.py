"""`stitch-mcp rl synthesize`."""

from pathlib import Path

import click

from stitch_mcp.cli.options import json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.cli.rl_options import away_from_option, report_section


@click.command("synthesize")
@click.option("--count", default=100, metavar="N", help="Tasks that are wanted (default: 100).")
@click.option("--seed", default=0, metavar="N", help="Equal seeds give equal samples (default: 0).")
@away_from_option
@click.option("--out", required=True, metavar="DIR", type=click.Path(path_type=Path), help="Where tasks go.")
@json_option
def command(count: int, seed: int, benchmarks: tuple[Path, ...], out: Path, as_json: bool) -> int:
    """Sample new tasks, run each, and keep those that pass every filter."""
    from stitch_mcp.config import configure
    from stitch_mcp.rl.data.near_duplicates import read_fingerprints
    from stitch_mcp.rl.data.synthesis import synthesize
    from stitch_mcp.rl.data.task_filter import TaskFilter

    output = CommandOutput("rl synthesize", as_json=as_json)
    out.mkdir(parents=True, exist_ok=True)
    config = configure({"workspace": str(out), "threads": 1, "target": "cpu"})
    known = read_fingerprints(benchmarks)

    def say(accepted: int, sampled: int) -> None:
        if accepted % 50 == 0:
            output.progress(f"{accepted} of {count} accepted, {sampled} sampled")

    with TaskFilter(config, out, known) as kept:
        report = synthesize(kept, count, seed, most_tries=20 * count, emit=say)
    section = report_section(report, out)
    return output.finish(dict(report), [section], 0 if report.accepted == count else 3)
