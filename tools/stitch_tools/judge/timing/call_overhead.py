"""Limit what an empty batch may cost a program: about as much as it costs the baselines.

Batches without calls are timed to be taken off the others. A program that waits in them would be timed as if
its calls took less; one that works in them, for the calls that follow, would have that work for nothing. So
what such a batch takes beyond a baseline's is not taken off, and is added as work.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import median

from stitch_tools.judge.timing.rounds import Rounds, Series
from stitch_tools.judge.timing.visits import Visit

# Beyond the dearest baseline's, for its scatter. Baselines answer from Python, native programs from C.
_SHARE, _ABSOLUTE_S = 1.05, 1e-6


def overhead_limit(rounds: Rounds, programs: Collection[str]) -> float | None:
    """Seconds that an empty batch may cost a program; None where there is no baseline."""
    return _limit(
        [
            median(overhead for visit in series.visits for overhead in visit.overheads_s)
            for name, series in rounds.series.items()
            if name not in programs and series.visits
        ]
    )


def charge_overhead(rounds: Rounds, programs: Collection[str]) -> Rounds:
    """The rounds, with what empty batches took too long added to the figures of these contestants."""
    limit_s = overhead_limit(rounds, programs)
    if limit_s is None:
        return rounds

    def charged(series: Series) -> Series:
        limits = (max(limit_s, _limit_in_round(rounds, programs, n // 2)) for n in range(len(series.visits)))
        return Series([_charged(*pair) for pair in zip(series.visits, limits, strict=True)])

    return replace(
        rounds,
        series={
            name: charged(series) if name in programs else series for name, series in rounds.series.items()
        },
    )


def _limit_in_round(rounds: Rounds, programs: Collection[str], number: int) -> float:
    """The limit by one round alone: a slow minute of the machine makes all empty batches longer."""
    costs = [
        median(visit.overheads_s)
        for name, series in rounds.series.items()
        if name not in programs
        for visit in series.visits[2 * number : 2 * number + 2]
    ]
    return _limit(costs) or 0.0


def _limit(costs: Sequence[float]) -> float | None:
    return _SHARE * max(costs) + _ABSOLUTE_S if costs else None


def _charged(visit: Visit, limit_s: float) -> Visit:
    # Of single batches the median: each scatters, and calls may be shorter than that.
    over_s = _beyond(median(visit.overheads_s), limit_s)
    least_s = _beyond(min(visit.overheads_s), limit_s)
    wholes_s = tuple(whole + 2.0 * least_s / (3 * visit.pace_calls) for whole in visit.wholes_s)
    slopes_s = visit.slopes_s
    if visit.slope_overheads_s:
        pairs = zip(visit.slopes_s, visit.slope_overheads_s, strict=True)
        slopes_s = wholes_s = tuple(
            slope + 2.0 * _beyond(overhead, limit_s) / visit.pace_calls for slope, overhead in pairs
        )
    beyond_s = visit.batches * least_s + sum(_beyond(empty, limit_s) for empty in visit.all_overheads_s)
    return replace(
        visit,
        slopes_s=slopes_s,
        wholes_s=wholes_s,
        latencies_s=tuple(latency + over_s for latency in visit.latencies_s),
        overheads_s=tuple(overhead - over_s for overhead in visit.overheads_s),
        total_s=visit.total_s + beyond_s / visit.calls,
    )


def work_s(empty_s: float, full_s: float, limit_s: float | None) -> float:
    """Seconds of work in a batch of calls that followed an empty one; see the module."""
    return full_s - empty_s + 2.0 * _beyond(empty_s, limit_s)


def least_work_s(pairs: Sequence[tuple[float, float]], limit_s: float | None) -> float:
    """The same of the quickest of several pairs, less what the quickest empty batch took."""
    least_s = min(empty_s for empty_s, _ in pairs)
    taken_off_s = least_s - _beyond(least_s, limit_s)
    return max(0.0, min(full_s + _beyond(empty_s, limit_s) for empty_s, full_s in pairs) - taken_off_s)


def _beyond(seconds: float, limit_s: float | None) -> float:
    return 0.0 if limit_s is None else max(0.0, seconds - limit_s)
