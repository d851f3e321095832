"""Why a timing decides nothing is said with its own figures."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stitch_tools.judge.timing.rounds import Series
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.visits import Visit
from stitch_tools.judge.timing.wording import explain, timing_of
from stitch_tools.models import Ratio
from stitch_tools.models.verdict import BenchOutcome


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
