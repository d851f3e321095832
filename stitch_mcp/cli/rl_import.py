"""`stitch-mcp rl import`."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stitch_mcp.cli.options import json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.cli.rl_options import away_from_option, report_section

if TYPE_CHECKING:
    from stitch_mcp.rl.data.public_sets import SetFormat

_FORMATS = ("kernelbench", "kernelbook", "cuda-agent-ops")


@click.command("import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--format", "how", required=True, type=click.Choice(_FORMATS), help="Whose columns PATH has.")
@away_from_option
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Look at the first N rows alone.")
@click.option("--target", default="cpu", show_default=True, metavar="DEVICE", help="Where references run.")
@click.option(
    "--longest-s",
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="Drop tasks that take longer to look at.",
)
@click.option("--out", required=True, metavar="DIR", type=click.Path(path_type=Path), help="Where tasks go.")
@json_option
def command(
    path: Path,
    how: "SetFormat",
    benchmarks: tuple[Path, ...],
    limit: int | None,
    target: str,
    longest_s: float,
    out: Path,
    as_json: bool,
) -> int:
    """Read PATH, a local copy of a public set, and keep the tasks that pass the filters of `rl synthesize`.

    PATH holds JSON lines, a JSON array or Parquet; for kernelbench it may be a checkout. A row that misses a
    field is refused with its number.
    """
    from stitch_mcp.config import configure
    from stitch_mcp.rl.data.near_duplicates import read_fingerprints
    from stitch_mcp.rl.data.public_sets import read_set
    from stitch_mcp.rl.data.task_filter import TaskFilter

    output = CommandOutput("rl import", as_json=as_json)
    out.mkdir(parents=True, exist_ok=True)
    config = configure({"workspace": str(out), "threads": 1, "target": target})
    with TaskFilter(config, out, read_fingerprints(benchmarks), longest_s=longest_s) as kept:
        for candidate in islice(read_set(path, how), limit):
            kept.take(candidate)
            if kept.sampled % 100 == 0:
                output.progress(f"{len(kept.accepted)} of {kept.sampled} accepted")
        report = kept.write()
    return output.finish(dict(report), [report_section(report, out)], 0 if report.accepted else 3)
