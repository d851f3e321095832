"""`stitch-mcp rl collect`."""

from pathlib import Path

import click

from stitch_mcp.cli.options import json_option, workspace_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.table import ReportSection


@click.command("collect")
@click.option(
    "--tasks",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also a question a task of this tasks.jsonl.",
)
@click.option("--target", default="cpu", metavar="DEVICE", help="Device that questions of --tasks ask for.")
@click.option("--out", required=True, metavar="FILE", type=click.Path(path_type=Path), help="JSON lines.")
@workspace_option
@json_option
def command(tasks: Path | None, target: str, out: Path, workspace: str | None, as_json: bool) -> int:
    """Collect what models were asked and answered in this workspace's runs, with what was measured."""
    from stitch_mcp.config import configure
    from stitch_mcp.rl.data.collection import collect_samples, read_tasks, samples_of_tasks
    from stitch_mcp.rl.data.samples import write_samples
    from stitch_planner.runs.run import Workspace

    output = CommandOutput("rl collect", as_json=as_json)
    config = configure({"workspace": workspace})
    samples = list(collect_samples(Workspace(config.workspace)))
    if tasks is not None:
        samples += samples_of_tasks(read_tasks(tasks), target)
    unique = list({sample.sample_id: sample for sample in samples}.values())
    write_samples(out, unique)
    counts = {skill: sum(row.skill == skill for row in unique) for skill in ("generate", "refine")}
    fields = {"out": str(out), "samples": len(unique), **counts, "counted": sum(row.counts for row in unique)}
    notes = (f"{len(unique)} samples, {counts['generate']} generate and {counts['refine']} refine: {out}",)
    return output.finish(fields, [ReportSection(notes=notes)])
