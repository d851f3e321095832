"""`stitch-mcp runs list`, `show`, `diff`, `rm` and `gc`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stitch_mcp.cli.options import json_option, settings, workspace_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.printed_commands import program_name
from stitch_mcp.views.table import ReportSection, one_line

if TYPE_CHECKING:
    from stitch_mcp.history import RunView
    from stitch_planner.runs.run import RunSummary


_REASON_CHARACTERS = 160
"""A terminal that is too narrow cuts the column itself."""


@click.group("runs")
def command() -> None:
    """List, show, compare and remove runs."""


@command.command("list")
@workspace_option
@json_option
def list_runs(workspace: str | None, as_json: bool) -> int:
    """List the runs of this workspace, oldest first."""
    from stitch_mcp.history import list_history

    config = settings(workspace=workspace)
    root = config.workspace
    history = list_history(root)
    rows = tuple(
        (
            row.run_id,
            row.target,
            _state(row, row.run_id in history.running),
            "-" if row.status == "open" else row.outcome,
            str(row.attempts),
            one_line(row.reason, _REASON_CHARACTERS),
        )
        for row in history.runs
    )
    # The user's own data folder is made by the first run; one that was named should be there.
    named = config.origin("workspace") in ("--workspace", "STITCH_WORKSPACE")
    what = f"there is no folder {root}" if named and not root.exists() else f"no runs yet in {root}"
    none = () if rows else (f"{what}; start one with: stitch-mcp solve REF",)
    notes = history.problems or none
    columns = ("run", "target", "status", "outcome", "programs", "how it ended") if rows else ()
    section = ReportSection("", columns, rows, notes, cut=True)
    return CommandOutput("runs list", as_json=as_json).finish(history.model_dump(mode="json"), [section])


@command.command("show")
@click.argument("run", default="last")
@workspace_option
@json_option
def show(run: str, workspace: str | None, as_json: bool) -> int:
    """Show the events, evidence and certificate of one run.

    RUN is its id, a unique prefix of it, or `last` (the default).
    """
    from stitch_mcp.history import show_run
    from stitch_mcp.printed_commands import resume_command
    from stitch_mcp.views.fact_tables import bench_sections, check_sections
    from stitch_mcp.views.plan_tables import refinement_section

    root = settings(workspace=workspace).workspace
    view = show_run(root, run)
    events = ReportSection("events", ("at", "event", "what"), tuple(view.event_rows))
    sections = [events, _attempts_section(view)] if view.attempts else [events]
    if any(row.review for row in view.attempts):
        sections.append(_review_section(view))
    if view.refinement:
        sections.append(refinement_section(view.refinement, view.plan))
    if view.calls:
        sections.append(_calls_section(view))
    if view.check:
        sections += check_sections(view.check)
    if view.bench:
        sections += bench_sections(view.bench)
    notes = [f"run: {view.folder}"]
    notes.append(f"certificate: {view.certificate}" if view.certificate else "certificate: none")
    notes.extend(_open_questions(view))
    notes.extend(_next_steps(view, resume_command(root, view.run_id)))
    sections.append(ReportSection(notes=tuple(notes)))
    return CommandOutput("runs show", as_json=as_json).finish(view.model_dump(mode="json"), sections)


@command.command("diff")
@click.argument("first", default="last")
@click.argument("second", required=False)
@workspace_option
@json_option
def diff(first: str, second: str | None, workspace: str | None, as_json: bool) -> int:
    """Compare two runs, or two programs of one run.

    FIRST and SECOND are a run, which stands for its best program, or RUN:ROUND, as in `last:0`. Without
    SECOND the first program of the run is compared with the one that FIRST names.
    """
    from stitch_mcp.run_comparison import compare_runs

    compared = compare_runs(settings(workspace=workspace).workspace, first, second)
    rows = tuple((row.what, row.first, row.second) for row in compared.rows)
    sources = ReportSection(
        "sources", notes=tuple(compared.diff.split("\n")) if compared.diff else ("equal",)
    )
    cut = (f"{compared.left_out} more lines",) if compared.left_out else ()
    sections = [
        ReportSection("", ("", compared.first, compared.second), rows),
        replace(sources, notes=(*sources.notes, *cut)),
    ]
    return CommandOutput("runs diff", as_json=as_json).finish(compared.model_dump(mode="json"), sections)


@command.command("rm")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@workspace_option
@json_option
def remove(runs: tuple[str, ...], workspace: str | None, as_json: bool) -> int:
    """Delete runs with all that lies in their folders, certificates and reports included.

    RUN is an id, a unique prefix of it, or `last`. A run that a process works on is refused.
    """
    from stitch_planner.runs.cleaning import remove_run
    from stitch_planner.runs.run import Workspace

    place = Workspace(settings(workspace=workspace).workspace)
    # All names first: a wrong one among them removes nothing, and `last` twice is one run.
    names = dict.fromkeys(place.run_folder(name).name for name in runs)
    removed = [remove_run(place, name) for name in names]
    rows = tuple((row.run_id, _size(row.freed_bytes)) for row in removed)
    notes = ("programs and evidence lie in the store until: stitch-mcp runs gc",)
    section = ReportSection("", ("removed", "size"), rows, notes)
    fields = {"removed": [row.model_dump(mode="json") for row in removed]}
    return CommandOutput("runs rm", as_json=as_json).finish(fields, [section])


@command.command("gc")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option(
    "--now",
    is_flag=True,
    help="Also remove what was stored within the last hour: only where nothing works in this workspace.",
)
@workspace_option
@json_option
def collect(dry_run: bool, now: bool, workspace: str | None, as_json: bool) -> int:
    """Remove from the store what no run and no job names: what was left by removed runs and single steps."""
    from stitch_planner.runs.cleaning import clean_store
    from stitch_planner.runs.run import Workspace
    from stitch_tools.storage.garbage import SETTLED_S

    place = Workspace(settings(workspace=workspace).workspace)
    garbage = clean_store(place, settled_s=0.0 if now else SETTLED_S, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    notes = [f"{verb} {garbage.removed} files, {_size(garbage.removed_bytes)}; {garbage.kept} are in use"]
    if garbage.recent:
        notes.append(f"{garbage.recent} are younger than an hour and were kept: --now removes them, too")
    fields = {"dry_run": dry_run, **garbage.model_dump(mode="json")}
    return CommandOutput("runs gc", as_json=as_json).finish(fields, [ReportSection(notes=tuple(notes))])


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _attempts_section(view: "RunView") -> ReportSection:
    """The run's programs, the best one and the certified one marked."""
    rows = tuple(
        (
            f"{row.round:03d}",
            row.program_id[:16],
            row.author or "-",
            f"{row.status} ({', '.join(row.flags)})" if row.flags else row.status,
            "yes" if row.counts else "no",
            row.outcome,
            "-" if row.speedup is None else f"{row.speedup:.2f}x",
            "-" if row.safe_speedup is None else f"{row.safe_speedup:.2f}x",
            ", ".join(name for name, here in (("best", row.best), ("certified", row.certified)) if here),
        )
        for row in view.attempts
    )
    columns = ("round", "program", "author", "status", "counts", "outcome", "speedup", "at least", "")
    return ReportSection("programs", columns, rows)


def _review_section(view: "RunView") -> ReportSection:
    """How the programs are rated, dimension by dimension."""
    reviewed = [(f"{row.round:03d}", row.review) for row in view.attempts if row.review]
    rows = tuple((number, *line) for number, review in reviewed for line in review.lines)
    notes = tuple(f"{number}: {review.note}" for number, review in reviewed if review.note)
    columns = ("round", "dimension", "score", "evidence")
    return ReportSection("review (no verdict depends on it)", columns, rows, notes)


def _calls_section(view: "RunView") -> ReportSection:
    """The run's questions to a model, and what they took at most."""
    rows = tuple(
        (
            f"{row.asked.call:03d}",
            row.asked.model,
            str(row.sent),
            "yes" if row.answered else "no",
            f"{row.tokens:,}",
            "-" if row.usd is None else f"{row.usd:.4f}",
        )
        for row in view.calls
    )
    columns = ("question", "model", "sent", "answered", "tokens at most", "USD at most")
    return ReportSection("questions to the model", columns, rows)


def _state(row: "RunSummary", running: bool) -> str:
    """A run's status with its flags; open runs are told apart by what they wait for."""
    if running:
        return "running"
    if row.status == "open":
        waiting = "open" if row.attempts else "analyzed only"
        return "interrupted" if row.interrupted else waiting
    shortcomings = ["does not count"] if row.counts is False and row.status == "accepted" else []
    notes = [*row.flags, *shortcomings]
    return f"{row.status} ({', '.join(notes)})" if notes else row.status


def _open_questions(view: "RunView") -> list[str]:
    """Where a person has to answer."""
    from stitch_planner.llm.file_models import ANSWER, PROMPT, ManualModel

    if view.status != "open":
        return []
    asked = [call.asked for call in view.calls if call.answered is None]
    folders = [
        Path(view.folder, "calls", f"{row.call:03d}") for row in asked if row.model == ManualModel.name
    ]
    return [f"waiting for {folder / ANSWER}, the answer to {PROMPT} beside it" for folder in folders]


def _next_steps(view: "RunView", command: str) -> list[str]:
    """Why a run is not finished, and how to resume it."""
    from stitch_planner.stitcher import StitchFailedError

    if view.running:
        return ["running: a process works on it now"]
    go_on = f"continue with: {command}"
    newest = view.attempts[-1] if view.attempts else None
    if view.status == "open" and newest and newest.status != "open" and not newest.counts:
        what = f"not finished; its newest program is {newest.status} and does not count"
        others = "the best one that counts, else with one that the stitcher writes"
        return [f"{what}; {go_on}; it continues with {others}"]
    if view.status == "open":
        return [f"not finished{': ' + view.message if view.message else ''}; {go_on}"]
    if view.stopped is None:
        return []
    lines = [f"failed at the step '{view.stopped.step}': {view.stopped.message}"]
    if view.stopped.hint:
        lines.append(f"next: {view.stopped.hint}")
    if view.stopped.code == StitchFailedError.code:
        # The same reference gives the same graph, for which the same stitcher writes no program either.
        anew = f"{program_name()} solve REF"
        own = f"{program_name()} check REF PROGRAM"
        return [
            *lines,
            f"resuming it cannot help: change the reference, then {anew}; or judge your own: {own}",
        ]
    return [*lines, f"once that is fixed, {go_on}; a changed reference needs a new solve"]
