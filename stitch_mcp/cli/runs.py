"""`stitch-mcp runs list` and `show`."""

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
    """List runs, or show one."""


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
    notes.extend(_next_steps(view, resume_command(root, view.run_id)))
    sections.append(ReportSection(notes=tuple(notes)))
    return CommandOutput("runs show", as_json=as_json).finish(view.model_dump(mode="json"), sections)


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
