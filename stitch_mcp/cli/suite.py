"""`stitch-mcp suite`."""

from pathlib import Path

import click

from stitch_mcp import __version__
from stitch_mcp.cli.interrupt import stop_on_interrupt
from stitch_mcp.cli.options import json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.cli.streams import tell
from stitch_mcp.suite.rows import RowFile, SuiteProtocol, SuiteRow
from stitch_mcp.suite.summary import how_it_ended, markdown, summarise, summary_lines
from stitch_mcp.suite.sweep import Sweep
from stitch_mcp.suite.tasks import chosen, folder_tasks, kernelbench_tasks
from stitch_mcp.views.table import ReportSection, one_line

_REST = {"ignore_unknown_options": True}


@click.command("suite", context_settings=_REST)
@click.argument("kind", type=click.Choice(["kernelbench", "folder"]))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--path",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The checkout, or the folder.",
)
@click.option("--level", "levels", default="3", metavar="N,N", help="KernelBench's levels (default: 3).")
@click.option("--only", default="", metavar="WORDS", help="Only tasks whose name holds one of these words.")
@click.option(
    "--mode", type=click.Choice(["train", "eval"]), help="Mode of all modules (default: as shipped)."
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the sweep.")
@click.option("--jobs", default=1, metavar="N", help="Runs side by side (default: 1).")
@click.option("--task-limit-s", default=900.0, metavar="SECONDS", help="Longest run (default: 900).")
@click.option("--begin-until-s", type=float, metavar="SECONDS", help="Begin no task later than this.")
@json_option
def command(
    kind: str,
    arguments: tuple[str, ...],
    path: Path,
    levels: str,
    only: str,
    mode: str | None,
    out: Path,
    jobs: int,
    task_limit_s: float,
    begin_until_s: float | None,
    as_json: bool,
) -> int:
    """Solve every reference of KernelBench's levels, or of a folder, as one sweep.

    Further options, such as --target cuda --quick, go to each task's `stitch-mcp solve`. The sweep's folder
    keeps a row a task (rows.jsonl), the runs, and a summary (summary.md); the same command goes on where one
    was interrupted. Programs are timed one at a time on a device, whatever --jobs says.
    """
    output = CommandOutput("suite", as_json=as_json)
    numbers = [int(word) for word in levels.split(",") if word.strip().isdigit()]
    tasks = chosen(kernelbench_tasks(path, numbers) if kind == "kernelbench" else folder_tasks(path), only)
    options = (*arguments, *(("--set", f"mode={mode}") if mode else ()))
    protocol = SuiteProtocol(arguments=options, revision=f"stitch-mcp {__version__}", task_count=len(tasks))
    file = RowFile(out, protocol)
    known = file.read()
    left = [task for task in tasks if task.name not in known]
    output.progress(f"{len(left)} of {len(tasks)} tasks are left")

    def say(row: SuiteRow) -> None:
        gain = f", {row.speedup:.2f}x" if row.speedup is not None else ""
        word = "counts" if row.counts else how_it_ended(row)
        tell(one_line(output.stamped(f"{row.task}: {word}{gain} ({row.wall_s:.0f} s) {row.message}"), 150))

    with stop_on_interrupt() as stop:
        sweep = Sweep(file, out / "workspace", options, jobs=max(1, jobs), task_limit_s=task_limit_s)
        sweep.run(left, begin_until_s=begin_until_s, stop=stop, emit=say)
    rows = file.read()
    ordered = [rows[task.name] for task in tasks if task.name in rows]
    summary = summarise(ordered, len(tasks))
    title = f"KernelBench level {levels}" if kind == "kernelbench" else f"The references of {path.name}"
    (out / "summary.md").write_text(markdown(ordered, summary, protocol, title), encoding="utf-8")
    fields = {**dict(summary), "rows": ordered, "folder": str(out)}
    notes = (*summary_lines(summary), f"written: {out / 'summary.md'}")
    unfinished = summary.known < summary.tasks
    return output.finish(fields, [ReportSection(notes=notes)], 130 if unfinished and stop.is_set() else 0)
