"""What the rows of a sweep amount to: facts, and sections for people."""

import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby

from stitch_mcp.suite.rows import SuiteProtocol, SuiteRow
from stitch_mcp.views.table import ReportSection
from stitch_tools.models.base import Fact

FAST_AT = (1.0, 1.5, 2.0)
_MESSAGE_CHARS = 160
_EXIT_WORDS = {1: "internal error", 2: "usage", 3: "no program", 5: "environment", 124: "time limit"}
FIGURE_COLUMNS = (
    "tasks of",
    "tasks",
    "count",
    "accepted",
    "over eager: median",
    "geometric mean",
    "over torch.compile: median",
    "geometric mean",
    "over a CUDA graph: median",
    "geometric mean",
    *(f"fast_{p:g}" for p in FAST_AT),
    "minutes",
)
ROW_COLUMNS = (
    "task",
    "ended",
    "eager, us",
    "program, us",
    "over eager",
    "over torch.compile",
    "over a CUDA graph",
    "own",
    "library",
    "PyTorch",
)


class Gains(Fact):
    """Speedups over one baseline, of programs that count."""

    timed: int
    """How many of them have one."""
    median: float | None
    geomean: float | None


class SuiteSummary(Fact):
    """Figures of a sweep. Speedups are of programs that count; a task without one is in no mean."""

    tasks: int
    known: int
    """Tasks that have a row."""
    accepted: int
    counted: int
    eager: Gains
    compiled: Gains
    """Over the fastest of torch.compile's modes that were timed."""
    graphed: Gains
    """Over eager in a CUDA graph, inputs copied in."""
    fast: dict[str, float]
    """fast_p: the share of all tasks whose program counts and is more than p times as fast as eager."""
    slow: tuple[str, ...]
    """Tasks whose program counts and is below 0.95 times eager."""
    failures: dict[str, tuple[str, ...]]
    """The tasks without an accepted program, by how they ended."""
    minutes: float
    """Of all runs together; those side by side count each."""


def summarise(rows: Sequence[SuiteRow], tasks: int) -> SuiteSummary:
    """The figures over `rows`, of a sweep over `tasks` tasks."""
    counted = [row for row in rows if row.counts]
    eager = [row.speedup for row in counted if row.speedup is not None]
    failed = sorted((how_it_ended(row), row.task) for row in rows if row.status != "accepted")
    return SuiteSummary(
        tasks=tasks,
        known=len(rows),
        accepted=sum(row.status == "accepted" for row in rows),
        counted=len(counted),
        eager=_gains(row.speedup for row in counted),
        compiled=_gains(row.compiled_speedup for row in counted),
        graphed=_gains(row.graphed_speedup for row in counted),
        fast={f"{p:g}": sum(gain > p for gain in eager) / max(tasks, 1) for p in FAST_AT},
        slow=tuple(row.task for row in counted if row.speedup is not None and row.speedup < 0.95),
        failures={
            how: tuple(name for _, name in group) for how, group in groupby(failed, lambda pair: pair[0])
        },
        minutes=sum(row.wall_s for row in rows) / 60.0,
    )


def tells(row: SuiteRow) -> bool:
    """Whether the task tells right from wrong: outputs depend on inputs and weights, and all was proved."""
    return not row.insensitive and "weak" not in row.flags


def summarise_telling(rows: Sequence[SuiteRow], tasks: int) -> SuiteSummary:
    """The figures without tasks that are insensitive, and programs that are accepted as `weak`."""
    telling = [row for row in rows if tells(row)]
    return summarise(telling, tasks - (len(rows) - len(telling)))


def how_it_ended(row: SuiteRow) -> str:
    """One word or two for a row: its status, else what its exit code means."""
    return row.status or _EXIT_WORDS.get(row.exit_code, f"exit {row.exit_code}")


def sections(rows: Sequence[SuiteRow], tasks: int, protocol: SuiteProtocol) -> list[ReportSection]:
    """The sweep for people: how it was made, its figures, what failed, then a row a task."""
    figures = [
        ("all", summarise(rows, tasks)),
        ("without weak and insensitive ones", summarise_telling(rows, tasks)),
        *_levels(rows),
    ]
    all_of_them = figures[0][1]
    failures = tuple((how, str(len(names)), ", ".join(names)) for how, names in all_of_them.failures.items())
    return [
        ReportSection(notes=_conditions(rows, protocol)),
        ReportSection(
            "Figures",
            FIGURE_COLUMNS,
            tuple(_figures(name, summary) for name, summary in figures),
            (
                "Medians and geometric means are of programs that count and were timed against that baseline "
                "(n of them); fast_p is a share of all tasks. Minutes are those of all runs together.",
                *([f"Slower than eager: {', '.join(all_of_them.slow)}."] if all_of_them.slow else []),
            ),
        ),
        *([ReportSection("Not accepted", ("ended", "tasks", "which"), failures)] if failures else []),
        ReportSection(
            "Tasks",
            ROW_COLUMNS,
            tuple(map(_line, rows)),
            (
                "Speedups are medians of pairs measured side by side in one run, with the 95% interval over "
                "eager. Own, library and PyTorch are shares of the work.",
            ),
        ),
    ]


def summary_lines(summary: SuiteSummary) -> list[str]:
    """The figures in words."""
    failures = ", ".join(f"{len(names)} {how}" for how, names in summary.failures.items())
    fast = ", ".join(f"fast_{p} {share:.0%}" for p, share in summary.fast.items())
    slow = f" Slower than eager: {', '.join(summary.slow)}." if summary.slow else ""
    gains = [
        ("eager", summary.eager),
        ("torch.compile", summary.compiled),
        ("eager in a CUDA graph", summary.graphed),
    ]
    told = "; ".join(f"{_gains_text(gain)} over {name}" for name, gain in gains if gain.timed)
    return [
        f"{summary.counted} of {summary.tasks} tasks count, {summary.accepted} accepted"
        + (f", {summary.tasks - summary.known} not run" if summary.known < summary.tasks else "")
        + (f"; the others: {failures}" if failures else "")
        + ".",
        f"Geometric mean (median, n) of those that count: {told or 'none was timed'}.",
        f"{fast} (shares of all tasks).{slow} {summary.minutes:.1f} minutes of runs.",
    ]


def _conditions(rows: Sequence[SuiteRow], protocol: SuiteProtocol) -> tuple[str, ...]:
    devices = sorted({row.device for row in rows if row.device})
    contracts = sorted({row.contract for row in rows if row.contract})
    gpus = {row.gpu for row in rows if row.gpu}
    beside = f" on {len(gpus)} GPUs" if len(gpus) > 1 else ""
    every = protocol.compile_every
    return (
        f"Command: stitch-mcp solve TASK {' '.join(protocol.arguments)} ({protocol.revision}).",
        f"Device: {', '.join(devices) or 'not timed'}{beside}.",
        f"Contract: {'; '.join(contracts) or 'no run was opened'}.",
        f"Mode: {protocol.mode or 'as the references leave their modules'}.",
        *([f"torch.compile was timed on one task of {every} by number."] if every > 1 else []),
    )


def _levels(rows: Sequence[SuiteRow]) -> list[tuple[str, SuiteSummary]]:
    """The figures of each of several levels, over those of its tasks that have a row."""
    names = dict.fromkeys(row.task.partition("/")[0] for row in rows if "/" in row.task)
    if len(names) < 2:
        return []
    parts = {name: [row for row in rows if row.task.startswith(f"{name}/")] for name in names}
    return [(name, summarise(part, len(part))) for name, part in parts.items()]


def _figures(name: str, summary: SuiteSummary) -> tuple[str, ...]:
    gains = (summary.eager, summary.compiled, summary.graphed)
    return (
        name,
        str(summary.tasks),
        str(summary.counted),
        str(summary.accepted),
        *(
            text
            for gain in gains
            for text in (
                figure(gain.median, "{:.2f}x"),
                figure(gain.geomean, "{:.2f}x") + (f" (n={gain.timed})" if gain.timed else ""),
            )
        ),
        *(f"{share:.0%}" for share in summary.fast.values()),
        f"{summary.minutes:.1f}",
    )


def _line(row: SuiteRow) -> tuple[str, ...]:
    why = "; ".join(row.reasons) if row.reasons else "" if row.status == "accepted" else row.message
    marks = [*row.flags, *(["insensitive"] if row.insensitive else [])]
    ended = ended_words(row) + (f" ({', '.join(marks)})" if marks else "")
    return (
        row.task,
        f"{ended}{f': {why}' if why else ''}"[:_MESSAGE_CHARS],
        figure(row.eager_us, "{:.0f}"),
        figure(row.program_us, "{:.0f}"),
        speedup_text(row),
        figure(row.compiled_speedup, "{:.2f}x"),
        figure(row.graphed_speedup, "{:.2f}x"),
        *(figure(share, "{:.0%}") for share in (row.own_share, row.library_share, row.pytorch_share)),
    )


def ended_words(row: SuiteRow) -> str:
    """`counts`, or how it ended."""
    return "counts" if row.counts else how_it_ended(row)


def speedup_text(row: SuiteRow) -> str:
    """The speedup over eager with its interval, "" where there is none."""
    interval = f" ({row.low:.2f} to {row.high:.2f})" if row.low is not None and row.high is not None else ""
    return figure(row.speedup, "{:.2f}x") + interval


def figure(value: float | None, form: str) -> str:
    """The value in a form, "" where there is none."""
    return "" if value is None else form.format(value)


def _gains_text(gains: Gains) -> str:
    return f"{figure(gains.geomean, '{:.2f}x')} ({figure(gains.median, '{:.2f}x')}, {gains.timed})"


def _gains(values: Iterable[float | None]) -> Gains:
    known = [value for value in values if value is not None]
    return Gains(
        timed=len(known),
        median=statistics.median(known) if known else None,
        geomean=statistics.geometric_mean(known) if known else None,
    )
