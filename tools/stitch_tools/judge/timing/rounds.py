"""Visit all contestants in mirrored rounds, and take ratios of what the visits measured.

A *round* visits every contestant twice in mirrored order (A B C C B A), the ABBA scheme for any number of
contestants: a linear drift of the machine cancels inside it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from stitch_tools.judge.timing.statistics import (
    Interval,
    half_quartile_distance,
    is_settled,
    median_interval,
    round_ratio,
)
from stitch_tools.judge.timing.visits import Contestant, Pace, TimingRules, Visit, Watch, calibrate, visit
from stitch_tools.machine.interference import Snapshot, snapshot, steal_share

Figure = Literal["latency_us", "throughput_us"]
# Above this share of disturbed visits the timing counts as disturbed.
_DISTURBED = 0.10


@dataclass
class Series:
    """All visits of one contestant, two per round."""

    visits: list[Visit] = field(default_factory=list[Visit])

    def values(self, figure: Figure) -> list[float]:
        """One value per visit."""
        if figure == "throughput_us":
            return [visit.throughput_s for visit in self.visits]
        return [visit.latency_s for visit in self.visits]

    def throughput_s(self) -> float:
        """Median over all blocks."""
        return median(slope for visit in self.visits for slope in visit.slopes_s)

    def throughput_spread_s(self) -> float | None:
        """Half the distance between the quartiles of the blocks."""
        return half_quartile_distance([slope for visit in self.visits for slope in visit.slopes_s])

    def latency_s(self) -> float:
        """Median of single calls minus median of empty batches."""
        ones = median(value for visit in self.visits for value in visit.latencies_s)
        return ones - median(value for visit in self.visits for value in visit.overheads_s)

    def latency_spread_s(self) -> float | None:
        """Half the distance between the quartiles of the single calls."""
        return half_quartile_distance([value for visit in self.visits for value in visit.latencies_s])

    @property
    def blocks(self) -> int:
        """Blocks that count."""
        return sum(len(visit.slopes_s) for visit in self.visits)


@dataclass(frozen=True)
class Disturbance:
    """How many visits were left out, since something waited for a CPU or lost it."""

    left_out: int
    visits: int

    @property
    def is_large(self) -> bool:
        """Whether the timing counts as disturbed."""
        return self.left_out > _DISTURBED * self.visits


@dataclass(frozen=True)
class Rounds:
    """Everything that one timing run measured."""

    series: dict[str, Series]
    """By contestant; the first one is the program."""
    began: Snapshot
    ended: Snapshot

    @property
    def steal_share(self) -> float | None:
        """Share of the machine's time that the hypervisor took."""
        return steal_share(self.began, self.ended)

    def ratio(self, baseline: str, program: str, figure: Figure) -> Interval | None:
        """The speedup over one baseline with its interval, one ratio per round; None without any round."""
        theirs, ours = self.series[baseline], self.series[program]
        return _interval(theirs, ours, theirs.values(figure), ours.values(figure))

    def whole_ratio(self, baseline: str, program: str) -> Interval | None:
        """The same by the time of all batches of a visit; None without any round."""
        theirs, ours = self.series[baseline], self.series[program]
        totals = ([visit.total_s for visit in series.visits] for series in (theirs, ours))
        return _interval(theirs, ours, *totals)

    def disturbance(self, *, without: Sequence[str] = ()) -> Disturbance:
        """Of all visits, or of those of all contestants but some."""
        visits = [v for name, series in self.series.items() if name not in without for v in series.visits]
        return Disturbance(sum(not visit.clean for visit in visits), len(visits))


def _interval(
    baseline: Series, program: Series, theirs: Sequence[float], ours: Sequence[float]
) -> Interval | None:
    """Of one speedup per round, from the two mirrored visits of each; disturbed rounds are left out."""
    found: list[float] = []
    for first in range(0, min(len(theirs), len(ours)) - 1, 2):
        pair = slice(first, first + 2)
        clean = all(visit.clean for visit in (*baseline.visits[pair], *program.visits[pair]))
        if clean and min(*theirs[pair], *ours[pair]) > 0.0:
            found.append(round_ratio(theirs[pair], ours[pair]))
    return median_interval(found) if found else None


def run_rounds(
    contestants: Sequence[Contestant],
    *,
    rules: TimingRules,
    figure: Figure,
    until_s: float,
    hard_until_s: float | None = None,
    watch: Watch = snapshot,
    watch_of: Callable[[Contestant], Watch] | None = None,
    after_visit: Callable[[Contestant], None] | None = None,
) -> Rounds:
    """Visit all contestants in mirrored rounds until the ratios settle.

    No round begins after the monotonic time `until_s`, but for the fewest rounds (`rules.min_rounds`), which
    long calls may finish until `hard_until_s`; none after `rules.give_up_s` without a usable round. What was
    measured by then counts; too few undisturbed rounds are inconclusive by themselves. `watch_of` gives what
    tells whether visits of one contestant are disturbed; else `watch` does.
    """
    paces: dict[str, Pace] = {}
    for contestant in contestants:
        contestant.resume()
        paces[contestant.name] = calibrate(contestant, rules)
        contestant.pause()
    watches = {one.name: watch_of(one) if watch_of else watch for one in contestants}
    began = watch()
    rounds = Rounds({contestant.name: Series() for contestant in contestants}, began, began)
    done = 0
    last_s = until_s if hard_until_s is None else hard_until_s
    give_up_s = float("inf") if rules.give_up_s is None else time.monotonic() + rules.give_up_s
    while not done or time.monotonic() < (last_s if done < rules.min_rounds else until_s):
        done += 1
        for contestant in [*contestants, *reversed(contestants)]:
            rounds.series[contestant.name].visits.append(
                visit(contestant, paces[contestant.name], rules, watches[contestant.name])
            )
            if after_visit is not None:
                after_visit(contestant)
        program, *baselines = (contestant.name for contestant in contestants)
        intervals = [rounds.ratio(name, program, figure) for name in baselines]
        if done >= rules.min_rounds and all(_is_enough(interval, rules) for interval in intervals):
            break
        if time.monotonic() >= give_up_s and intervals and not any(intervals):
            break
    return Rounds(rounds.series, began, watch())


def _is_enough(interval: Interval | None, rules: TimingRules) -> bool:
    if interval is None or interval.count < rules.min_rounds:
        return False
    return interval.count >= rules.max_rounds or is_settled(interval)
