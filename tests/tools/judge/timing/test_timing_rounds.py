"""Blocks, visits and rounds on contestants with a simulated clock: who is woken when, and what is counted."""

import itertools
import random
from pathlib import Path

import pytest

from stitch_tools.judge.timing.report import ratio_of
from stitch_tools.judge.timing.rounds import run_rounds
from stitch_tools.judge.timing.statistics import outcome_of
from stitch_tools.judge.timing.timed_process import RunnerFailedError
from stitch_tools.judge.timing.visits import TimingRules, calibrate, visit
from stitch_tools.machine.interference import (
    Snapshot,
    find_pressure,
    snapshot,
    steal_share,
    waited_share,
    waits_of,
    was_disturbed,
)

FIGURE = "throughput_us"
FOREVER = float("inf")


class Simulated:
    """A contestant whose calls take a known time on a clock that nobody waits for."""

    def __init__(
        self, name: str, call_s: float, *, empty_s: float = 50e-6, noise: float = 0.0, seed: int = 0
    ) -> None:
        self.name = name
        self.call_s, self.empty_s, self.noise = call_s, empty_s, noise
        self.random = random.Random(f"{name}{seed}")
        self.running = False
        self.calls = 0
        self.batches: list[int] = []

    def run_calls(self, calls: int) -> float:
        assert self.running, f"{self.name} was asked while it stood still"
        self.calls += calls
        self.batches.append(calls)
        factor = self.random.lognormvariate(0.0, self.noise) if self.noise else 1.0
        return self.empty_s + calls * self.call_s * factor

    def renew(self) -> None:
        assert self.running, f"{self.name} was asked while it stood still"

    def pause(self) -> None:
        self.running = False

    def resume(self) -> None:
        self.running = True


def quiet() -> Snapshot:
    return Snapshot(0.0, 0, 0)


@pytest.mark.parametrize("call_s", [1e-6, 50e-6, 3e-3, 6.6e-3])
def test_a_block_of_short_calls_lasts_at_most_20_ms(call_s: float) -> None:
    contestant = Simulated("program", call_s)
    contestant.resume()
    pace = calibrate(contestant, TimingRules())
    assert not pace.from_zero
    assert 0.010 <= 3 * pace.calls * call_s <= 0.0201
    assert pace.warm_calls >= 2


@pytest.mark.parametrize(
    ("call_s", "shortest_s", "longest_s"),
    [(1e-6, 0.005, 0.0101), (3.3e-3, 0.009, 0.0101), (5e-3, 0.010, 0.0201)],
)
def test_blocks_are_shorter_where_short_ones_are_wanted_and_three_calls_fit(
    call_s: float, shortest_s: float, longest_s: float
) -> None:
    contestant = Simulated("program", call_s)
    contestant.resume()
    pace = calibrate(contestant, TimingRules(short_block_s=0.010))
    assert not pace.from_zero
    assert shortest_s <= 3 * pace.calls * call_s <= longest_s


@pytest.mark.parametrize("call_s", [7e-3, 19e-3, 0.5])
def test_a_long_call_is_measured_against_an_empty_batch(call_s: float) -> None:
    contestant = Simulated("program", call_s)
    contestant.resume()
    pace = calibrate(contestant, TimingRules())
    assert pace.from_zero
    assert pace.calls == max(1, int(0.020 / call_s))


class SlowToWake(Simulated):
    """On a busy machine: its first batches wait so long for a CPU that one call seems to cost nothing."""

    def run_calls(self, calls: int) -> float:
        return super().run_calls(calls) + (0.012 if len(self.batches) <= 4 and not calls else 0.0)


def test_where_one_call_seems_to_cost_nothing_the_next_batch_is_no_flood_of_calls() -> None:
    contestant = SlowToWake("program", 3e-3)
    contestant.resume()
    pace = calibrate(contestant, TimingRules())
    assert max(contestant.batches) <= 16
    assert 1e-3 < pace.call_s < 4e-3


@pytest.mark.parametrize("call_s", [2e-6, 1e-3, 30e-3])
def test_both_figures_are_free_of_the_cost_of_a_batch(call_s: float) -> None:
    contestant = Simulated("program", call_s, empty_s=80e-6)
    contestant.resume()
    pace = calibrate(contestant, TimingRules())
    seen = visit(contestant, pace, TimingRules(), quiet)
    assert seen.throughput_s == pytest.approx(call_s)
    assert seen.latency_s == pytest.approx(call_s)


def test_every_visit_begins_with_dropped_calls_and_ends_standing_still() -> None:
    contestant = Simulated("program", 1e-3)
    contestant.resume()
    pace = calibrate(contestant, TimingRules())
    contestant.batches.clear()
    visit(contestant, pace, TimingRules(), quiet)
    assert contestant.batches[0] == pace.warm_calls
    assert not contestant.running


def test_one_runs_at_a_time_in_mirrored_order() -> None:
    order: list[str] = []
    contestants = [Simulated(name, 1e-3) for name in ("program", "eager", "compile:default")]

    def after(contestant: object) -> None:
        assert not any(other.running for other in contestants)
        order.append(getattr(contestant, "name", ""))

    run_rounds(
        contestants,
        rules=TimingRules(max_rounds=10),
        figure=FIGURE,
        until_s=FOREVER,
        watch=quiet,
        after_visit=after,
    )
    one = ["program", "eager", "compile:default", "compile:default", "eager", "program"]
    assert order == one * 10


def test_at_least_ten_rounds_are_run_and_more_while_the_interval_is_wide() -> None:
    even = [Simulated("program", 1e-3), Simulated("eager", 2e-3)]
    rounds = run_rounds(even, rules=TimingRules(), figure=FIGURE, until_s=FOREVER, watch=quiet)
    assert len(rounds.series["eager"].visits) == 20
    rough = [Simulated("program", 1e-3, noise=0.5), Simulated("eager", 2e-3, noise=0.5)]
    rounds = run_rounds(rough, rules=TimingRules(), figure=FIGURE, until_s=FOREVER, watch=quiet)
    assert len(rounds.series["eager"].visits) >= 80


def test_twice_the_work_is_slower_and_the_same_work_is_not_faster() -> None:
    contestants = [
        Simulated("program", 1e-3, noise=0.02),
        Simulated("half", 0.5e-3, noise=0.02),
        Simulated("same", 1e-3, noise=0.02),
    ]
    rounds = run_rounds(contestants, rules=TimingRules(), figure=FIGURE, until_s=FOREVER, watch=quiet)
    half, same = rounds.ratio("half", "program", FIGURE), rounds.ratio("same", "program", FIGURE)
    assert half is not None
    assert same is not None
    assert outcome_of(half) == "slower"
    assert half.middle == pytest.approx(0.5, rel=0.05)
    assert outcome_of(same) != "faster"


def test_a_block_in_which_time_was_stolen_is_repeated() -> None:
    contestant = Simulated("program", 1e-3)
    contestant.resume()
    pace = calibrate(contestant, TimingRules())
    # The visit begins; singles quiet, first block stolen from, then quiet again.
    ticks = iter([0, 0, 0, 0, 1, *[1] * 20])
    seen = visit(contestant, pace, TimingRules(), lambda: Snapshot(0.0, next(ticks), None))
    assert (seen.repeats, seen.disturbed, seen.clean, len(seen.slopes_s)) == (1, 0, True, 3)


def test_a_visit_that_never_is_undisturbed_does_not_enter_the_ratio() -> None:
    contestants = [Simulated("program", 1e-3), Simulated("eager", 2e-3)]
    ticks = iter(range(10**6))
    rounds = run_rounds(
        contestants,
        rules=TimingRules(max_rounds=10),
        figure=FIGURE,
        until_s=0.0,
        watch=lambda: Snapshot(0.0, next(ticks), None),
    )
    assert rounds.series["program"].visits[0].disturbed == 3
    assert rounds.ratio("eager", "program", FIGURE) is None


def test_rounds_are_given_up_in_time_where_not_one_was_undisturbed() -> None:
    contestants = [Simulated("program", 1e-3), Simulated("eager", 2e-3)]
    ticks = iter(range(10**6))
    rules = TimingRules(max_rounds=10, give_up_s=0.0)
    rounds = run_rounds(
        contestants,
        rules=rules,
        figure=FIGURE,
        until_s=FOREVER,
        watch=lambda: Snapshot(0.0, next(ticks), None),
    )
    assert len(rounds.series["eager"].visits) == 2
    rounds = run_rounds(contestants, rules=rules, figure=FIGURE, until_s=FOREVER, watch=quiet)
    assert len(rounds.series["eager"].visits) == 20, "one that was is enough to go on"


def test_waiting_for_a_cpu_counts_as_a_disturbance_from_a_share_on() -> None:
    begin = Snapshot(0.0, 5, 1000)
    assert not was_disturbed(begin, Snapshot(0.020, 5, 1900))
    assert was_disturbed(begin, Snapshot(0.020, 5, 2100))
    assert was_disturbed(begin, Snapshot(0.020, 6, 1000))


def test_a_kernel_that_tells_nothing_disturbs_nothing(tmp_path: Path) -> None:
    silent = snapshot(tmp_path)
    assert (silent.steal_ticks, silent.waited_us) == (None, None)
    assert not was_disturbed(silent, snapshot(tmp_path))
    assert steal_share(silent, snapshot(tmp_path)) is None
    assert waited_share(silent, snapshot(tmp_path)) is None


def test_counters_are_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  10 0 20 30 0 0 0 7 0 0\ncpu0 1\n", encoding="ascii")
    (tmp_path / "pressure").mkdir()
    text = "some avg10=0.16 avg60=6.72 avg300=9.65 total=63770323\nfull avg10=0.00 total=0\n"
    (tmp_path / "pressure" / "cpu").write_text(text, encoding="ascii")
    seen = snapshot(tmp_path)
    assert (seen.steal_ticks, seen.waited_us) == (7, 63770323)


def test_what_the_processes_of_a_timing_waited_for_is_told_apart_from_the_machine(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  10 0 20 30 0 0 0 7 0 0\n", encoding="ascii")
    for pid, waited_ns in ((11, 2_000_000), (12, 3_500_000)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "schedstat").write_text(f"9000000 {waited_ns} 12\n", encoding="ascii")
    watch = waits_of((11, 12), tmp_path)
    assert watch is not None
    assert (watch().steal_ticks, watch().waited_us) == (7, 5500)
    (tmp_path / "12" / "schedstat").unlink()
    assert watch().waited_us == 2000, "one that ended"
    assert waits_of((11, 12), tmp_path) is None


def test_only_the_contestant_that_waited_is_disturbed() -> None:
    contestants = [Simulated("program", 1e-3), Simulated("eager", 2e-3)]
    ticks = iter(range(10**6))
    rounds = run_rounds(
        contestants,
        rules=TimingRules(max_rounds=10),
        figure=FIGURE,
        until_s=0.0,
        watch_of=lambda one: (lambda: Snapshot(0.0, next(ticks), None)) if one.name == "eager" else quiet,
    )
    assert all(not visit.clean for visit in rounds.series["eager"].visits)
    assert all(visit.clean for visit in rounds.series["program"].visits)


def test_calls_longer_than_a_block_are_made_once_per_sample() -> None:
    contestant = Simulated("program", 0.5)
    contestant.resume()
    pace = calibrate(contestant, TimingRules())
    contestant.batches.clear()
    seen = visit(contestant, pace, TimingRules(), quiet)
    assert contestant.batches == [1, 0, 1]
    assert seen.slopes_s == (pytest.approx(0.5),)


def test_long_calls_may_finish_the_fewest_rounds_after_the_time_is_over() -> None:
    contestants = [Simulated("program", 0.5), Simulated("eager", 1.0)]
    rounds = run_rounds(
        contestants, rules=TimingRules(), figure=FIGURE, until_s=0.0, hard_until_s=FOREVER, watch=quiet
    )
    ratio = rounds.ratio("eager", "program", FIGURE)
    assert ratio is not None
    assert (ratio.count, ratio.middle) == (10, pytest.approx(2.0))


def write_pressure(file: Path, total: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n", encoding="ascii")


@pytest.mark.parametrize(
    ("own", "cpus", "expected"),
    [
        (None, 2, "machine"),  # no cgroup counter: a small machine's own one will do
        (None, 64, None),  # on a large one somebody always waits
        (5_000, 64, "own"),  # a container, or a slice of the system
        (1_000_000, 64, None),  # the root cgroup is the machine
    ],
)
def test_pressure_is_asked_where_it_speaks_about_us(
    tmp_path: Path, own: int | None, cpus: int, expected: str | None
) -> None:
    machine, cgroups = tmp_path / "pressure" / "cpu", tmp_path / "cgroups"
    write_pressure(machine, 1_000_100)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("1:cpu:/\n0::/user.slice\n", encoding="utf-8")
    if own is not None:
        write_pressure(cgroups / "user.slice" / "cpu.pressure", own)
    names = {"machine": machine, "own": cgroups / "user.slice" / "cpu.pressure", None: None}
    assert find_pressure(tmp_path, cgroups, cpus) == names[expected]


def test_a_visit_whose_calls_take_far_longer_than_at_first_ends() -> None:
    contestant = Simulated("program", 20e-6)
    contestant.resume()
    pace = calibrate(contestant, TimingRules())
    with pytest.raises(RunnerFailedError, match="more than 20 times as long"):
        visit(contestant, pace, TimingRules(slack_s=-60.0), quiet)
    assert not contestant.running


def test_a_visit_that_others_hold_up_goes_on_and_counts_as_disturbed() -> None:
    contestant = Simulated("program", 20e-6)
    contestant.resume()
    pace = calibrate(contestant, TimingRules())
    # A task waits for a CPU for a tenth of the time, and ever longer.
    moments = (Snapshot(second, 0, int(second * 1e5)) for second in itertools.count(0.0, 1.0))
    seen = visit(contestant, pace, TimingRules(slack_s=-60.0), lambda: next(moments))
    assert not seen.clean
    assert (seen.disturbed, seen.repeats) == (TimingRules().blocks_per_visit, 0)


class PutsOff(Simulated):
    """Moves a share of each longer batch into the one after it: the slope shrinks, not the sum."""

    put_off_s = 0.0

    def run_calls(self, calls: int) -> float:
        seconds = super().run_calls(calls)
        before, self.put_off_s = self.put_off_s, 0.0
        if len(self.batches) > 1 and calls == 2 * self.batches[-2]:
            self.put_off_s = 0.2 * calls * self.call_s
        return seconds + before - self.put_off_s


@pytest.mark.parametrize(("kind", "outcome"), [(PutsOff, "inconclusive"), (Simulated, "slower")])
def test_work_that_is_put_off_gains_nothing_over_whole_visits(kind: type[Simulated], outcome: str) -> None:
    contestants = [kind("program", 1.2e-3), Simulated("eager", 1e-3)]
    rules = TimingRules(warm_s=0.0, min_rounds=10, max_rounds=10)
    rounds = run_rounds(contestants, rules=rules, figure=FIGURE, until_s=FOREVER, watch=quiet)
    whole = rounds.whole_ratio("eager", "program")
    assert whole is not None
    assert whole.middle == pytest.approx(1 / 1.2, rel=0.03)
    ratio = ratio_of(rounds, "eager", "program", figure=FIGURE, noise=0.07)
    assert ratio is not None
    assert ratio.outcome == outcome
    assert (ratio.speedup > 1.2) == (kind is PutsOff)


def test_a_gain_by_both_accounts_is_one() -> None:
    contestants = [Simulated("program", 1e-3, noise=0.02), Simulated("eager", 1.2e-3, noise=0.02)]
    rounds = run_rounds(contestants, rules=TimingRules(), figure=FIGURE, until_s=FOREVER, watch=quiet)
    ratio = ratio_of(rounds, "eager", "program", figure=FIGURE, noise=0.07)
    assert ratio is not None
    assert ratio.outcome == "faster"
