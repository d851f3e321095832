"""What the rows of a sweep amount to, as facts and as Markdown."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from stitch_mcp.suite.rows import SuiteProtocol, SuiteRow
from stitch_tools.models.base import Fact

FAST_AT = (1.0, 1.5, 2.0)


class SuiteSummary(Fact):
    """Figures of a sweep. Speedups are of programs that count; a task without one is in no mean."""

    tasks: int
    known: int
    """Tasks that have a row."""
    accepted: int
    counted: int
    speedup_geomean: float | None
    """Over eager."""
    speedup_median: float | None
    compiled_geomean: float | None
    """Over the fastest of torch.compile's modes that were timed."""
    graphed_geomean: float | None
    """Over eager in a CUDA graph."""
    timed: int
    """Programs that count and have a speedup over eager."""
    fast: dict[str, float]
    """fast_p: the share of all tasks whose program counts and is more than p times as fast as eager."""
    slow: tuple[str, ...]
    """Tasks whose program counts and is below 0.95 times eager."""
    failures: dict[str, int]
    """How the tasks without an accepted program ended."""


def summarise(rows: Sequence[SuiteRow], tasks: int) -> SuiteSummary:
    """The figures over `rows`, of a sweep over `tasks` tasks."""
    counted = [row for row in rows if row.counts]
    gains = [row.speedup for row in counted if row.speedup is not None]
    fast = {f"{p:g}": sum(gain > p for gain in gains) / max(tasks, 1) for p in FAST_AT}
    accepted = [row for row in rows if row.status == "accepted"]
    return SuiteSummary(
        tasks=tasks,
        known=len(rows),
        accepted=len(accepted),
        counted=len(counted),
        speedup_geomean=geomean(gains),
        speedup_median=statistics.median(gains) if gains else None,
        compiled_geomean=geomean(_known(row.compiled_speedup for row in counted)),
        graphed_geomean=geomean(_known(row.graphed_speedup for row in counted)),
        timed=len(gains),
        fast=fast,
        slow=tuple(row.task for row in counted if row.speedup is not None and row.speedup < 0.95),
        failures=dict(Counter(how_it_ended(row) for row in rows if row.status != "accepted")),
    )


def how_it_ended(row: SuiteRow) -> str:
    """One word or two for a row: its status, else what its exit code means."""
    if row.status is not None:
        return row.status
    words = {1: "internal error", 2: "usage", 3: "no program", 5: "environment", 124: "time limit"}
    return words.get(row.exit_code, f"exit {row.exit_code}")


def geomean(values: Iterable[float]) -> float | None:
    """The geometric mean; None of nothing."""
    known = list(values)
    return statistics.geometric_mean(known) if known else None


def markdown(rows: Sequence[SuiteRow], summary: SuiteSummary, protocol: SuiteProtocol, title: str) -> str:
    """The sweep as a document: its figures, then a row a task."""
    devices = sorted({row.device for row in rows if row.device})
    lines = [
        f"# {title}",
        "",
        f"Command: `stitch-mcp solve TASK {' '.join(protocol.arguments)}`, {protocol.revision}.  ",
        f"Device: {', '.join(devices) or 'not timed'}.  ",
        *(f"{line}  " for line in summary_lines(summary)),
        "",
        "Speedups are medians of pairs measured side by side in one run, with the 95% interval over eager. "
        "Own, library and PyTorch are shares of the work.",
        "",
        "| task | ended | eager, us | program, us | over eager | over torch.compile | over a CUDA graph "
        "| own | library | PyTorch |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    return "\n".join([*lines, *(_line(row) for row in rows)]) + "\n"


def summary_lines(summary: SuiteSummary) -> list[str]:
    """The figures in words."""
    failures = ", ".join(f"{count} {name}" for name, count in sorted(summary.failures.items()))
    fast = ", ".join(f"fast_{p} {share:.0%}" for p, share in summary.fast.items())
    means = [
        ("eager", summary.speedup_geomean),
        ("torch.compile", summary.compiled_geomean),
        ("eager in a CUDA graph", summary.graphed_geomean),
    ]
    told = ", ".join(f"{value:.2f}x over {name}" for name, value in means if value is not None)
    slow = f" Slower than eager: {', '.join(summary.slow)}." if summary.slow else ""
    return [
        f"{summary.counted} of {summary.tasks} tasks count, {summary.accepted} accepted"
        + (f", {summary.tasks - summary.known} not run" if summary.known < summary.tasks else "")
        + (f"; the others: {failures}" if failures else "")
        + ".",
        f"Geometric mean over the {summary.timed} that count and were timed: {told or 'none'}"
        + (f"; median {summary.speedup_median:.2f}x over eager" if summary.speedup_median else "")
        + ".",
        f"{fast} (shares of all tasks).{slow}",
    ]


def _line(row: SuiteRow) -> str:
    interval = f" ({row.low:.2f} to {row.high:.2f})" if row.low is not None and row.high is not None else ""
    ended = how_it_ended(row) if row.status != "accepted" else "counts" if row.counts else "accepted"
    why = "; ".join(row.reasons) if row.reasons else "" if row.status == "accepted" else row.message
    cells = [
        row.task,
        f"{ended}{f': {why}' if why else ''}".replace("|", "/").replace("\n", " ")[:160],
        _figure(row.eager_us, "{:.0f}"),
        _figure(row.program_us, "{:.0f}"),
        _figure(row.speedup, "{:.2f}x") + interval,
        _figure(row.compiled_speedup, "{:.2f}x"),
        _figure(row.graphed_speedup, "{:.2f}x"),
        *(_figure(share, "{:.0%}") for share in (row.own_share, row.library_share, row.pytorch_share)),
    ]
    return f"| {' | '.join(cells)} |"


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
