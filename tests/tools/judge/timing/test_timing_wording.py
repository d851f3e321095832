"""Why a timing decides nothing is said with its own figures."""

from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from stitch_tools.judge.timing.output_check import OutputCheck
from stitch_tools.judge.timing.rounds import Series
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.visits import Visit
from stitch_tools.judge.timing.wording import describe_doubt, describe_not_compared, explain, timing_of
from stitch_tools.models.conditions import DoubtRule, TimingDoubt
from stitch_tools.models.verdict import Bench, BenchOutcome, Ratio


def ratio(low: float, high: float, outcome: BenchOutcome = "inconclusive") -> Ratio:
    return Ratio(
        baseline="eager",
        contestant="program",
        speedup=(low + high) / 2,
        low=low,
        high=high,
        outcome=outcome,
    )


@pytest.mark.parametrize(
    ("against", "told", "expected"),
    [
        (ratio(1.25, 1.31), {"rounds": 7}, "only 7 undisturbed rounds of the 10 that a verdict takes"),
        (None, {"rounds": 1}, "only 1 undisturbed round of the 10"),
        (None, {"rounds": 0}, "no undisturbed round of eager was measured"),
        (ratio(1.03, 1.31), {"rounds": 12}, "1.030 to 1.310, does not clear the 7% by which two runs"),
        (ratio(0.98, 1.31), {"rounds": 12}, "does not exclude equality"),
        (ratio(1.25, 1.31), {"rounds": 12}, "1.250 to 1.310, is not that of whole visits"),
    ],
)
def test_one_reason_is_given_and_it_fits_the_figures(
    against: Ratio | None, told: dict[str, Any], expected: str
) -> None:
    said = explain(against, noise=0.07, quick=False, **told)
    assert expected in said
    assert "--quick" not in said
    assert ("%" in said) + ("round" in said) <= 1


def test_a_quick_run_with_too_few_rounds_is_told_of_a_whole_one() -> None:
    assert explain(ratio(1.25, 1.31), rounds=7, noise=0.07, quick=True).endswith("without --quick")


def test_a_verdict_needs_no_words() -> None:
    assert explain(ratio(1.25, 1.31, "faster"), rounds=12, noise=0.07, quick=True) == ""


@pytest.mark.parametrize(("slope_s", "measured_us"), [(2e-6, 2.0), (-2e-6, None), (0.0, None)])
def test_a_time_below_nothing_is_none(slope_s: float, measured_us: float | None) -> None:
    runner = cast("Runner", SimpleNamespace(name="eager", note=""))
    visit = Visit((slope_s,) * 3, (3e-6,) * 3, (2e-3,), (1e-3,), 3e-6)
    timing = timing_of(runner, Series([visit] * 4))
    assert timing.latency_us == pytest.approx(1000.0)
    assert timing.throughput_us == (None if measured_us is None else pytest.approx(measured_us))
    assert ("the throughput is not measured" in timing.note) == (measured_us is None)
    assert (timing.throughput_spread_us is None) == (measured_us is None)


def doubt(rule: DoubtRule, observed: float = 9.0, expected: float = 3.0) -> TimingDoubt:
    return TimingDoubt(rule=rule, observed=observed, expected=expected, calls=5, baseline="eager")


@pytest.mark.parametrize("rule", get_args(DoubtRule))
def test_every_doubt_is_said_with_both_figures(rule: DoubtRule) -> None:
    words = describe_doubt(doubt(rule))
    assert "9.0" in words
    assert "3" in words


def test_what_reading_outputs_costs_is_said_as_slower_and_faster() -> None:
    assert describe_doubt(doubt("deferred_work", -17127.0, 20.0)) == (
        "a timed call is 20.00 us faster than that of eager, and 17127.00 us slower where its outputs are"
        " read afterwards: work seems to be put off until outputs are read"
    )


@pytest.mark.parametrize(("clean", "disturbed"), [(4, False), (2, False), (1, True), (0, True)])
def test_medians_of_visits_most_of_which_were_left_out_are_disturbed(clean: int, disturbed: bool) -> None:
    runner = cast("Runner", SimpleNamespace(name="eager", note=""))
    visits = [Visit((1e-6,), (1e-6,), (2e-3,), (1e-3,), 3e-6, clean=index < clean) for index in range(4)]
    assert timing_of(runner, Series(visits)).disturbed is disturbed


def test_more_than_one_thread_is_said_as_such() -> None:
    assert describe_doubt(doubt("extra_cpus", 2.0, 1.0)).endswith("where one thread is allowed")
    assert describe_doubt(doubt("extra_cpus", 5.0, 2.0)).endswith("where 2 threads are allowed")


def test_outputs_that_were_not_compared_are_named_in_part_or_as_a_whole() -> None:
    assert describe_not_compared(OutputCheck(not_compared="why")) == "timed outputs were not compared: why"
    assert describe_not_compared(OutputCheck(not_compared="why", compared=2)).startswith(
        "not all timed outputs"
    )
    assert describe_not_compared(OutputCheck(compared=3)) == ""


def test_a_bench_that_was_stored_before_doubts_were_facts_is_still_doubtful() -> None:
    old = Bench(program_id="p", task_id="t", outcome="inconclusive").model_dump(exclude={"doubts"})
    assert not Bench.model_validate(old).is_doubtful
    assert Bench.model_validate({**old, "doubt": "the program kept 2.0 CPUs busy"}).is_doubtful
