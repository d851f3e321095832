"""CPU times side by side, on contestants with a simulated clock."""

import random

import pytest

from stitch_tools.judge.timing.cpu_time import compare_cpu_times


class Computing:
    """A contestant whose calls use a known CPU time, whoever else uses the machine."""

    def __init__(self, name: str, call_s: float, *, noise: float = 0.0) -> None:
        self.name, self.call_s, self.noise = name, call_s, noise
        self.random = random.Random(name)
        self.running = False
        self.spent_s = 0.0

    def run_calls(self, calls: int) -> float:
        assert self.running, f"{self.name} was asked while it stood still"
        self.spent_s += calls * self.call_s * (1.0 + self.noise * self.random.random())
        return self.random.random()  # the time on the wall, which says nothing here

    def cpu_s(self) -> float:
        return self.spent_s

    def pause(self) -> None:
        self.running = False

    def resume(self) -> None:
        self.running = True


@pytest.mark.parametrize(("call_s", "outcome"), [(1e-3, "slower"), (2e-3, "inconclusive"), (4e-3, "faster")])
def test_cpu_times_and_their_ratio_are_those_of_the_calls(call_s: float, outcome: str) -> None:
    contestants = [Computing("program", 2e-3, noise=0.02), Computing("eager", call_s, noise=0.02)]
    times = compare_cpu_times(contestants)
    program, eager = times.timings
    assert (program.name, eager.name) == ("program", "eager")
    assert program.cpu_us == pytest.approx(2000, rel=0.03)
    assert program.low_us is not None
    assert program.high_us is not None
    assert 2000 <= program.low_us <= program.cpu_us <= program.high_us <= 2040
    (ratio,) = times.ratios
    assert (ratio.baseline, ratio.contestant, ratio.outcome) == ("eager", "program", outcome)
    assert ratio.low <= ratio.speedup <= ratio.high
    assert ratio.speedup == pytest.approx(call_s / 2e-3, rel=0.03)


def test_a_clock_that_stands_still_gives_no_ratio() -> None:
    assert compare_cpu_times([Computing("program", 0.0), Computing("eager", 1e-3)]).ratios == ()


def test_a_late_bench_makes_one_round() -> None:
    times = compare_cpu_times([Computing("program", 1e-3), Computing("eager", 1e-3)], until_s=0.1)
    assert [row.n for row in times.timings] == [2, 2]
    assert times.ratios == (), "one round gives no interval"
