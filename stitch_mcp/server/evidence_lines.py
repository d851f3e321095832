"""Evidence as lines that an agent reads: the same words in every tool's answer."""

from stitch_tools.models.acceptance import Verdict
from stitch_tools.models.verdict import Bench, Check, Finding, Ratio, Timing

_MOST = 8


def reasons_as_lines(verdict: Verdict) -> tuple[str, ...]:
    """Why a program does not count, one line each."""
    return tuple(f"{row.rule}: {row.message}"[:400] for row in verdict.reasons[:_MOST])


def findings_as_lines(findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Findings as one line each, the most severe first."""
    order = ("fatal", "suspicious", "note")
    # sorted() is stable: within a severity the rules keep their order.
    rows = sorted(findings, key=lambda row: order.index(row.severity))
    return tuple(
        f"{row.severity} {row.rule}{f' at {row.file}:{row.line}' if row.file else ''}: {row.message}"[:400]
        for row in rows[: 2 * _MOST]
    )


def work_as_line(checked: Check) -> str | None:
    """Who did the work, None where it was not traced."""
    if checked.work is None:
        return None
    work = checked.work
    return (
        f"own {work.own:.0%}, library {work.library:.0%}, pytorch {work.pytorch:.0%}, "
        f"copies {work.copies:.0%}, other {work.other:.0%}"
    )


def sanitizers_as_line(checked: Check) -> str:
    """Which tools looked for memory errors and races, and what they say; that none did where none ran."""
    ran = [run for run in checked.sanitizers if run.status != "not_checked"]
    if not ran:
        return "none ran (`sanitize`: true looks for memory errors and races)"
    rows = [f"{run.tool}: {run.status}" for run in ran]
    left_out = [run for run in checked.sanitizers if run.status == "not_checked"]
    rows += [f"{run.tool}: not run, {run.reason}" for run in left_out]
    return "; ".join(rows)[:600]


def times_as_lines(bench: Bench) -> tuple[str, ...]:
    """The median time of each contestant, by the figure that the ratios were taken on; CPU times follow."""
    cpu = tuple(
        f"{row.name}: {row.cpu_us:.2f} us CPU on one thread"
        + (f" ({row.low_us:.2f} to {row.high_us:.2f})" if row.low_us and row.high_us else "")
        for row in bench.cpu_timings
    )
    return (*(_time(row, bench) for row in bench.timings), *cpu)


def ratios_as_lines(bench: Bench) -> tuple[str, ...]:
    """The speedup over each baseline with its interval."""
    by_time = tuple(f"{_ratio(row)}, {row.outcome}" for row in bench.ratios)
    # Less work is not yet more speed: this has no outcome.
    return (*by_time, *(f"{_ratio(row)} by CPU time on one thread" for row in bench.cpu_ratios))


def _ratio(row: Ratio) -> str:
    return f"{row.contestant} over {row.baseline}: {row.speedup:.2f} ({row.low:.2f} to {row.high:.2f})"


def interval_of(bench: Bench | None) -> tuple[float, ...]:
    """95% interval of the speedup over eager; () where there is none."""
    eager = bench.ratio("eager") if bench else None
    return (round(eager.low, 3), round(eager.high, 3)) if eager else ()


def _time(row: Timing, bench: Bench) -> str:
    is_latency = bench.figure == "latency_us"
    time_us = row.latency_us if is_latency else row.throughput_us
    if time_us is None:
        return f"{row.name}: not measured; {row.note}"[:200]
    half = row.latency_spread_us if is_latency else row.throughput_spread_us
    spread = f" +- {half:.2f}" if half is not None else ""
    busy = ", disturbed" if row.disturbed else ""
    return f"{row.name}: {time_us:.2f} us{spread} ({bench.figure.removesuffix('_us')}{busy})"
