"""Empty batches are neither a place to wait in nor one to work in: no figure gets smaller by them."""

from dataclasses import replace

import pytest

from stitch_tools.judge.timing.call_overhead import charge_overhead, least_work_s, overhead_limit, work_s
from stitch_tools.judge.timing.probes.moved_work import moved_work
from stitch_tools.judge.timing.report import ratio_of
from stitch_tools.judge.timing.rounds import Rounds, Series, run_rounds
from stitch_tools.judge.timing.visits import TimingRules, Visit
from tests.tools.judge.timing.test_timing_rounds import Simulated, quiet

RULES = TimingRules(min_rounds=10, max_rounds=10, latency_samples=5)
EMPTY_S = 50e-6


class Waiting(Simulated):
    """Waits in each empty batch."""

    wait_s = 0.0

    def run_calls(self, calls: int) -> float:
        return super().run_calls(calls) + (0.0 if calls else self.wait_s)


class Ahead(Simulated):
    """Does the work of as many later calls in each empty batch as it needs until the next one."""

    ahead = 0

    def run_calls(self, calls: int) -> float:
        if not calls:
            missing, self.ahead = 5000 - self.ahead, 5000
            return super().run_calls(0) + missing * self.call_s
        done = min(calls, self.ahead)
        self.ahead -= done
        return super().run_calls(calls) - done * self.call_s * 0.99


def timed(program: Simulated, baseline: Simulated) -> Rounds:
    return run_rounds(
        [program, baseline],
        rules=RULES,
        figure="throughput_us",
        until_s=float("inf"),
        watch=quiet,
    )


@pytest.mark.parametrize("call_s", [40e-6, 8e-3, 30e-3])
def test_a_program_that_waits_in_empty_batches_gains_nothing(call_s: float) -> None:
    program, baseline = Waiting("program", call_s), Simulated("eager", call_s)
    program.wait_s = 0.7 * call_s
    rounds = timed(program, baseline)
    fair = charge_overhead(rounds, ("program",))
    assert rounds.series["program"].latency_s() < 0.5 * call_s
    assert fair.series["program"].latency_s() > 0.95 * call_s
    assert fair.series["program"].throughput_s() > 0.95 * call_s
    assert fair.series["eager"] is rounds.series["eager"]
    for figure in ("latency_us", "throughput_us"):
        found = ratio_of(fair, "eager", "program", figure=figure, noise=0.07)
        assert found is not None
        assert found.outcome != "faster"


def test_work_done_in_empty_batches_is_in_the_time_of_the_visit() -> None:
    program, baseline = Ahead("program", 40e-6), Simulated("eager", 40e-6)
    rounds = timed(program, baseline)
    gain = ratio_of(rounds, "eager", "program", figure="throughput_us", noise=0.07)
    assert gain is not None
    assert gain.outcome == "faster"
    assert moved_work(rounds.series["program"].visits) is None
    fair = charge_overhead(rounds, ("program",))
    gain = ratio_of(fair, "eager", "program", figure="throughput_us", noise=0.07)
    assert gain is not None
    assert gain.outcome == "inconclusive"
    doubt = moved_work(fair.series["program"].visits)
    assert doubt is not None
    assert doubt.rule == "work_moved_out_of_blocks"


@pytest.mark.parametrize("call_s", [2e-6, 40e-6, 8e-3, 30e-3])
@pytest.mark.parametrize("empty_s", [0.2 * EMPTY_S, EMPTY_S])
def test_a_program_whose_empty_batches_cost_no_more_than_a_baselines_is_left_as_it_is(
    call_s: float, empty_s: float
) -> None:
    rounds = timed(
        Simulated("program", call_s, empty_s=empty_s), Simulated("eager", 2 * call_s, empty_s=EMPTY_S)
    )
    assert charge_overhead(rounds, ("program",)) == replace(rounds, series=rounds.series)
    gain = ratio_of(
        charge_overhead(rounds, ("program",)), "eager", "program", figure="throughput_us", noise=0.07
    )
    assert gain is not None
    assert gain.outcome == "faster"


def test_rounds_in_which_empty_batches_of_all_take_longer_are_left_as_they_are() -> None:
    program, baseline = (
        Simulated("program", 20e-6, empty_s=EMPTY_S),
        Simulated("eager", 20e-6, empty_s=EMPTY_S),
    )
    rounds = timed(program, baseline)
    for name, series in rounds.series.items():
        slow = [_slower(visit, 20e-6) for visit in series.visits[:4]]
        rounds.series[name] = Series([*slow, *series.visits[4:]])
    fair = charge_overhead(rounds, ("program",))
    assert fair.series["program"].values("latency_us") == rounds.series["program"].values("latency_us")
    # Where the program's alone do, that is charge_overhead.
    rounds.series["eager"] = Series(rounds.series["eager"].visits[4:] * 2)
    fair = charge_overhead(rounds, ("program",))
    assert fair.series["program"].visits[0].latency_s > rounds.series["program"].visits[0].latency_s + 20e-6


def _slower(visit: Visit, seconds: float) -> Visit:
    return replace(
        visit,
        overheads_s=tuple(floor + seconds for floor in visit.overheads_s),
        latencies_s=tuple(latency + seconds for latency in visit.latencies_s),
    )


def test_without_a_baseline_there_is_no_limit() -> None:
    rounds = timed(Simulated("program", 1e-3), Simulated("program:cudagraph", 1e-3))
    assert overhead_limit(rounds, ("program", "program:cudagraph")) is None
    assert charge_overhead(rounds, ("program", "program:cudagraph")) is rounds
    assert work_s(3.0, 10.0, None) == 7.0


def test_an_empty_batch_beyond_the_limit_is_work() -> None:
    assert work_s(1.0, 10.0, 2.0) == 9.0
    assert work_s(5.0, 6.0, 2.0) == pytest.approx(7.0)
    assert least_work_s([(1.0, 10.0), (9.0, 1.0)], 2.0) == pytest.approx(7.0)
    assert least_work_s([(9.0, 1.0), (9.0, 2.0)], 2.0) == pytest.approx(6.0)
    assert least_work_s([(1.0, 10.0), (3.0, 8.0)], None) == pytest.approx(7.0)
