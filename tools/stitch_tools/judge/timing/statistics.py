"""From block times to medians, spreads and an interval of the ratio. Pure numbers; no process is touched.

The ratio's 95% interval is a paired order statistic. Each round visits every contestant twice, in mirrored
order (A B B A), so that slow drift of the machine cancels inside the round; one round gives one ratio. Of n
such ratios the interval runs from the r-th smallest to the r-th largest, with the largest r for which the
chance that the true median lies outside is at most 5% (binomial, exact for any distribution). No bootstrap:
it needs no random numbers, is honest for 10 rounds, and a few disturbed rounds cannot move it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median, quantiles

from stitch_tools.models.verdict import BenchOutcome

CONFIDENCE = 0.95
CPU_NOISE = 0.07
GPU_NOISE = 0.05
"""Ratios this close to 1 are never called a gain or a loss. Two processes that run the same program differ
by their memory's placement, which no number of rounds averages out: medians by up to 6.5% on a quiet CPU
(docs/benchmarks/scatter.md). On an H200 eager differed from itself by up to 5% from allocation to allocation
(docs/decisions/0004-timing.md); programs were not measured against themselves there yet."""
TIGHT_HALF_WIDTH = 0.05
"""An interval within this share of its median is good enough to stop."""
MIN_ROUNDS = 10


@dataclass(frozen=True)
class Interval:
    """A median with the ends of its 95% interval; the ends are None where there are too few values."""

    middle: float
    low: float | None
    high: float | None
    count: int

    @property
    def half_width(self) -> float | None:
        """Half the interval's width as a share of the median."""
        if self.low is None or self.high is None or self.middle == 0.0:
            return None
        return (self.high - self.low) / (2.0 * self.middle)


def interval_rank(count: int, confidence: float = CONFIDENCE) -> int | None:
    """The rank (1-based) of the interval's ends among `count` sorted values; None: too few for any."""
    tail, allowed = 0.0, (1.0 - confidence) / 2.0
    rank = 0
    for below in range(count // 2 + 1):
        tail += math.comb(count, below) * 0.5**count
        if tail > allowed:
            break
        rank = below + 1
    return rank or None


def median_interval(values: Sequence[float]) -> Interval:
    """Median and distribution-free interval of independent values.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    rank = interval_rank(len(ordered))
    if rank is None:
        return Interval(median(ordered), None, None, len(ordered))
    return Interval(median(ordered), ordered[rank - 1], ordered[-rank], len(ordered))


def half_quartile_distance(values: Sequence[float]) -> float | None:
    """Half the distance between the quartiles; None for fewer than 4 values."""
    if len(values) < 4:
        return None
    first, _, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / 2.0


def rank_chance(higher: Sequence[float], lower: Sequence[float]) -> float:
    """How likely values of one kind would be ranked so high among the others by chance alone.

    Mann and Whitney's one-sided test (1947) by the normal approximation; equal values count half.

    Raises:
        ValueError: there are no values of one kind.
    """
    if not higher or not lower:
        raise ValueError("no values")
    wins = sum((one > other) + 0.5 * (one == other) for one in higher for other in lower)
    pairs = len(higher) * len(lower)
    spread = math.sqrt(pairs * (len(higher) + len(lower) + 1) / 12.0)
    return NormalDist(pairs / 2.0, spread).cdf(pairs - wins)


def round_ratio(baseline_s: Sequence[float], program_s: Sequence[float]) -> float:
    """Speedup in one round: the baseline's mean time over the program's, of its mirrored visits."""
    return (sum(baseline_s) / len(baseline_s)) / (sum(program_s) / len(program_s))


def outcome_of(interval: Interval, *, noise: float = GPU_NOISE) -> BenchOutcome:
    """`faster` or `slower` only where the whole interval lies beyond the noise, else `inconclusive`."""
    if interval.low is None or interval.high is None or interval.count < MIN_ROUNDS:
        return "inconclusive"
    if interval.low > 1.0 + noise:
        return "faster"
    if interval.high < 1.0 / (1.0 + noise):
        return "slower"
    return "inconclusive"


def is_settled(interval: Interval) -> bool:
    """Whether more rounds would not help: enough of them, and a tight interval."""
    width = interval.half_width
    return interval.count >= MIN_ROUNDS and width is not None and width <= TIGHT_HALF_WIDTH / 2.0
