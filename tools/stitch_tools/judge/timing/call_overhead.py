"""What a go without calls may cost a program: about as much as it costs the baselines.

Gos without calls are timed to be taken off the others. A program that waits in them would be timed as if its
calls took less; one that works in them, for the calls that follow, would have that work for nothing. So what
such a go takes beyond a baseline's is not taken off, and is added as work.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from stitch_tools.judge.timing.blocks import Rounds, Series, Visit

_SHARE, _ABSOLUTE_S = 1.05, 1e-6
"""Beyond the dearest baseline's, for its scatter. Baselines answer from Python, native programs from C."""


def limit_of(rounds: Rounds, programs: Iterable[str]) -> float | None:
    """Seconds that an empty go may cost a program; None where there is no baseline."""
    own = set(programs)
    costs = [
        median(floor for visit in series.visits for floor in visit.floors_s)
        for name, series in rounds.series.items()
        if name not in own and series.visits
    ]
    return _SHARE * max(costs) + _ABSOLUTE_S if costs else None


def charged(rounds: Rounds, programs: Iterable[str]) -> Rounds:
    """The rounds, with what empty gos took too long added to the figures of these contestants."""
    own = set(programs)
    limit_s = limit_of(rounds, own)
    if limit_s is None:
        return rounds
    series = {
        name: Series(
            [
                _charged(visit, max(limit_s, _limit_in_round(rounds, own, number // 2)))
                for number, visit in enumerate(found.visits)
            ]
        )
        if name in own
        else found
        for name, found in rounds.series.items()
    }
    return replace(rounds, series=series)


def _limit_in_round(rounds: Rounds, own: set[str], number: int) -> float:
    """The limit by one round alone: a slow minute of the machine makes all empty gos longer."""
    costs = [
        median(visit.floors_s)
        for name, series in rounds.series.items()
        if name not in own
        for visit in series.visits[2 * number : 2 * number + 2]
    ]
    return _SHARE * max(costs) + _ABSOLUTE_S if costs else 0.0


def _charged(visit: Visit, limit_s: float) -> Visit:
    # Of single gos the median: each scatters, and calls may be shorter than that.
    over_s = _beyond(median(visit.floors_s), limit_s)
    least_s = _beyond(min(visit.floors_s), limit_s)
    wholes_s = tuple(whole + 2.0 * least_s / (3 * visit.pace_calls) for whole in visit.wholes_s)
    slopes_s = visit.slopes_s
    if visit.slope_floors_s:
        pairs = zip(visit.slopes_s, visit.slope_floors_s, strict=True)
        slopes_s = wholes_s = tuple(
            slope + 2.0 * _beyond(floor, limit_s) / visit.pace_calls for slope, floor in pairs
        )
    beyond_s = visit.gos * least_s + sum(_beyond(empty, limit_s) for empty in visit.empty_s)
    return replace(
        visit,
        slopes_s=slopes_s,
        wholes_s=wholes_s,
        latencies_s=tuple(latency + over_s for latency in visit.latencies_s),
        floors_s=tuple(floor - over_s for floor in visit.floors_s),
        total_s=visit.total_s + beyond_s / visit.calls,
    )


def work_s(empty_s: float, full_s: float, limit_s: float | None) -> float:
    """Seconds of work in a go with calls that followed one without; see the module."""
    return full_s - empty_s + 2.0 * _beyond(empty_s, limit_s)


def least_work_s(pairs: Sequence[tuple[float, float]], limit_s: float | None) -> float:
    """The same of the quickest of several pairs, less what the quickest go without calls took."""
    least_s = min(empty_s for empty_s, _ in pairs)
    taken_off_s = least_s - _beyond(least_s, limit_s)
    return max(0.0, min(full_s + _beyond(empty_s, limit_s) for empty_s, full_s in pairs) - taken_off_s)


def _beyond(seconds: float, limit_s: float | None) -> float:
    return 0.0 if limit_s is None else max(0.0, seconds - limit_s)
