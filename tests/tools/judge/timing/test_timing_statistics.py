"""Intervals and outcomes, on simulated rounds with the noise that was seen on shared cores."""

import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_tools.judge.timing.statistics import (
    MIN_ROUNDS,
    half_quartile_distance,
    interval_rank,
    is_settled,
    median_interval,
    outcome_of,
    rank_chance,
    round_ratio,
)

seeds = st.integers(0, 2**32)


def simulated_ratios(seed: int, factor: float, rounds: int, noise: float, drift: float) -> list[float]:
    """Speedups of a program against one that takes `factor` times as long, in mirrored rounds."""
    rng = random.Random(seed)

    def visit(moment: float, seconds: float) -> float:
        disturbed = 1.5 if rng.random() < 0.03 else 1.0
        return seconds * (1.0 + drift * moment) * rng.lognormvariate(0.0, noise) * disturbed

    found: list[float] = []
    for index in range(rounds):
        order = [visit(4 * index + step, factor if step in (1, 2) else 1.0) for step in range(4)]
        found.append(round_ratio([order[1], order[2]], [order[0], order[3]]))
    return found


@given(seed=seeds, noise=st.floats(0.001, 0.05), drift=st.floats(-0.002, 0.002))
@settings(max_examples=60, deadline=None)
def test_a_ten_percent_difference_is_found_through_noise_and_drift(
    seed: int, noise: float, drift: float
) -> None:
    rounds = 40
    faster = median_interval(simulated_ratios(seed, 1.25, rounds, noise, drift))
    slower = median_interval(simulated_ratios(seed, 0.8, rounds, noise, drift))
    assert (outcome_of(faster), outcome_of(slower)) == ("faster", "slower")
    mild = median_interval(simulated_ratios(seed, 1.10, rounds, noise / 3.0, drift))
    assert outcome_of(mild) == "faster"


def test_one_program_against_itself_is_hardly_ever_called_different() -> None:
    outcomes = [
        outcome_of(median_interval(simulated_ratios(seed, 1.0, 12, 0.02, 0.001))) for seed in range(400)
    ]
    assert sum(outcome != "inconclusive" for outcome in outcomes) <= 0.05 * len(outcomes)


@pytest.mark.parametrize("count", [6, 10, 11, 25, 40])
def test_the_interval_holds_the_true_median_as_often_as_it_promises(count: int) -> None:
    rng = random.Random(count)
    hits = 0
    for _ in range(2000):
        interval = median_interval([rng.lognormvariate(0.0, 0.5) for _ in range(count)])
        assert interval.low is not None
        assert interval.high is not None
        hits += interval.low <= 1.0 <= interval.high
    assert hits / 2000 >= 0.94


@pytest.mark.parametrize(("count", "rank"), [(1, None), (5, None), (6, 1), (8, 1), (9, 2), (10, 2), (20, 6)])
def test_the_rank_of_the_ends_is_that_of_the_binomial_table(count: int, rank: int | None) -> None:
    assert interval_rank(count) == rank


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=60))
def test_the_median_lies_inside_its_interval_in_any_order(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval.middle == median(values)
    if interval.low is not None and interval.high is not None:
        assert min(values) <= interval.low <= interval.middle <= interval.high <= max(values)
    assert median_interval(values[::-1]) == interval


def test_linear_drift_cancels_inside_a_mirrored_round() -> None:
    times = [1.0 + 0.1 * step for step in range(4)]
    assert round_ratio([times[1], times[2]], [times[0], times[3]]) == pytest.approx(1.0)


def test_too_few_rounds_are_inconclusive_whatever_they_say() -> None:
    assert outcome_of(median_interval([3.0] * (MIN_ROUNDS - 1))) == "inconclusive"
    assert outcome_of(median_interval([3.0] * MIN_ROUNDS)) == "faster"


def test_a_tight_interval_beside_one_is_inconclusive() -> None:
    assert outcome_of(median_interval([1.005] * 40)) == "inconclusive"
    assert outcome_of(median_interval([0.995] * 40)) == "inconclusive"


def test_rounds_continue_until_the_interval_is_tight() -> None:
    assert is_settled(median_interval([1.0, 1.01] * 10))
    assert not is_settled(median_interval([1.0, 1.5] * 10))
    assert not is_settled(median_interval([1.0] * 9))


def test_the_spread_is_half_the_distance_of_the_quartiles() -> None:
    assert half_quartile_distance([1.0, 2.0, 3.0, 4.0, 5.0]) == 1.0
    assert half_quartile_distance([1.0, 2.0, 3.0]) is None


def test_ranks_tell_a_shift_through_outliers_and_none_where_there_is_none() -> None:
    draw = random.Random(7)

    def times(middle: float, count: int) -> list[float]:
        # A busy moment: every third takes twice as long.
        return [
            middle * draw.uniform(1.0, 1.05) * (2.0 if draw.random() < 0.33 else 1.0) for _ in range(count)
        ]

    assert rank_chance(times(1.3, 32), times(1.0, 32)) < 0.005
    chances = [rank_chance(times(1.0, 32), times(1.0, 32)) for _ in range(400)]
    assert sum(chance < 0.05 for chance in chances) <= 0.09 * len(chances)
    assert 0.4 < sum(chances) / len(chances) < 0.6


def test_ranks_by_hand() -> None:
    assert rank_chance([4.0, 5.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx(
        0.0248, abs=1e-3
    )  # 4.5 / 2.291 from the middle
    assert rank_chance([1.0, 1.0], [1.0, 1.0]) == 0.5
    with pytest.raises(ValueError, match="no values"):
        rank_chance([], [1.0])


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        median_interval([])
