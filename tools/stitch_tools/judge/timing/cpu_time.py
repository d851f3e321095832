"""CPU time per call on one thread: a second figure, for machines that are too busy for the first.

A process that waits for a CPU uses none, so others change its CPU time only by what they take of caches and
memory. With one thread no time goes into waiting for other threads either. The figure tells how much work a
call is, and not how fast it is on all cores: no outcome of a bench rests on it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from stitch_tools.confine.process_tree import cpu_ns
from stitch_tools.judge.timing.baseline_runners import start_baseline
from stitch_tools.judge.timing.output_check import load_right
from stitch_tools.judge.timing.program_runners import (
    NamedProgram,
    RingPlan,
    start_ring,
)
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.setup import Setup
from stitch_tools.judge.timing.statistics import CPU_NOISE, median_interval, outcome_of, round_ratio
from stitch_tools.judge.timing.timed_process import RunnerFailedError
from stitch_tools.models.verdict import CpuTiming, Ratio
from stitch_tools.protocol.messages_reference import WeightsMade
from stitch_tools.run.reference_server import Inputs
from stitch_tools.run.session import TargetSession

_BATCH_S = 0.020
"""CPU time of a batch: the clock's reading and the request are less than a hundredth of it."""
_LONG_BATCH_S = 0.1
"""No batch is made longer than this by the wall clock: a program that sleeps uses its CPU time slowly."""
_MIN_ROUNDS, _MAX_ROUNDS = 10, 20
_BUDGET_S = 10.0
_LONGEST_S = 30.0
_MOST_CALLS = 1 << 16
_EAGER = "eager"


class SingleThreaded(Protocol):
    """A process on one thread that makes calls on command."""

    @property
    def name(self) -> str:
        """What the bench calls it."""
        ...

    def run_calls(self, calls: int) -> float:
        """Make a batch of calls."""
        ...

    def cpu_s(self) -> float:
        """CPU time of the process so far."""
        ...

    def pause(self) -> None:
        """Stop the process."""
        ...

    def resume(self) -> None:
        """Let it run again."""
        ...


@dataclass(frozen=True)
class CpuTimes:
    """CPU times side by side, and the ratios of the first contestant to all others."""

    timings: tuple[CpuTiming, ...] = ()
    ratios: tuple[Ratio, ...] = ()


@dataclass(frozen=True)
class _OneThread:
    """A runner whose CPU clock is read."""

    runner: Runner

    @property
    def name(self) -> str:
        return self.runner.name

    def run_calls(self, calls: int) -> float:
        return self.runner.run_calls(calls)

    def cpu_s(self) -> float:
        spent = cpu_ns(self.runner.child.pid)
        if spent is None:
            raise RunnerFailedError(self.name, "the process ended during timing", ended=True)
        return spent * 1e-9

    def pause(self) -> None:
        self.runner.pause()

    def resume(self) -> None:
        self.runner.resume()


def measure_cpu_times(
    setup: Setup,
    programs: Sequence[NamedProgram],
    weights: WeightsMade,
    draws: Sequence[Inputs],
    *,
    until_s: float | None,
    say: Callable[[str], None],
) -> CpuTimes:
    """CPU times of the programs and of eager, each in a new process with one thread; nothing where one fails.

    Args:
        setup: of the timing, on a CPU.
        programs: the first is the one that ratios are about.
        weights: those of the timing.
        draws: what the rings hold.
        until_s: a time.monotonic() value after which no further round is begun.
        say: takes sentences on the progress.
    """
    say("measuring CPU time on one thread")
    session = setup.session
    with ExitStack() as stack:
        try:
            # OpenMP reads the number of threads once, when torch is loaded: another session has another one.
            single = stack.enter_context(
                TargetSession(
                    session.interpreter,
                    at_most=session.sandbox_level,
                    threads=1,
                    stock_extensions=session.stock_extensions,
                )
            )
            own = replace(setup, session=single)
            plan = RingPlan(setup.shape.slots, draws)
            runners: list[Runner] = []
            for program in programs:
                loaded, wrong = load_right(stack, own, program, weights, draws)
                if wrong:
                    raise RunnerFailedError(program.name, f"its first call {wrong}")
                runners.append(start_ring(stack, own, loaded, plan))
                runners[-1].pause()
            runners.append(start_baseline(stack, own, _EAGER))
            runners[-1].pause()
            times = compare_cpu_times([_OneThread(runner) for runner in runners], until_s=until_s)
            for runner in runners:
                runner.finish()
        except RunnerFailedError as failure:
            say(f"CPU time is not measured: {failure}")
            return CpuTimes()
    return times


def compare_cpu_times(contestants: Sequence[SingleThreaded], *, until_s: float | None = None) -> CpuTimes:
    """Mirrored rounds of batches (A B B A), and what follows from their CPU times.

    Raises:
        RunnerFailedError: a process ended, or a call failed.
    """
    batches = {row.name: _calibrated(row) for row in contestants}
    spent: dict[str, list[float]] = {row.name: [] for row in contestants}
    began, rounds = time.monotonic(), 0
    last_s = min(began + _LONGEST_S, until_s or float("inf"))
    while rounds < _MAX_ROUNDS:
        for row in [*contestants, *reversed(contestants)]:
            spent[row.name].append(_batch(row, batches[row.name]))
        rounds += 1
        now = time.monotonic()
        if now >= last_s or (rounds >= _MIN_ROUNDS and now >= began + _BUDGET_S):
            break
    return _amounts(spent)


def _calibrated(contestant: SingleThreaded) -> int:
    """How many calls take a batch's CPU time."""
    calls = 1
    contestant.resume()
    contestant.run_calls(1)
    contestant.pause()
    while calls < _MOST_CALLS:
        began = time.monotonic()
        per_call = _batch(contestant, calls)
        wall_s = time.monotonic() - began
        longest = int(calls * _LONG_BATCH_S / wall_s)
        if per_call * calls >= _BATCH_S / 2.0 or longest <= calls:
            break
        calls = min(_MOST_CALLS, longest, max(2 * calls, int(_BATCH_S / max(per_call, 1e-7))))
    return calls


def _batch(contestant: SingleThreaded, calls: int) -> float:
    """CPU seconds per call of one batch; the first call after the switch is left out."""
    contestant.resume()
    try:
        contestant.run_calls(1)
        before = contestant.cpu_s()
        contestant.run_calls(calls)
        return (contestant.cpu_s() - before) / calls
    finally:
        contestant.pause()


def _amounts(spent: dict[str, list[float]]) -> CpuTimes:
    timings = {name: median_interval(values) for name, values in spent.items()}
    ours, *others = spent
    ratios: list[Ratio] = []
    for name in others:
        pairs = range(0, len(spent[name]), 2)
        # A clock that did not move measured nothing.
        rounds = [
            round_ratio(spent[name][at : at + 2], spent[ours][at : at + 2])
            for at in pairs
            if min(*spent[name][at : at + 2], *spent[ours][at : at + 2]) > 0.0
        ]
        interval = median_interval(rounds) if rounds else None
        if interval is None or interval.low is None or interval.high is None:
            continue
        ratios.append(
            Ratio(
                baseline=name,
                contestant=ours,
                speedup=interval.middle,
                low=interval.low,
                high=interval.high,
                outcome=outcome_of(interval, noise=CPU_NOISE),
            )
        )
    return CpuTimes(
        tuple(
            CpuTiming(
                name=name,
                cpu_us=row.middle * 1e6,
                low_us=None if row.low is None else row.low * 1e6,
                high_us=None if row.high is None else row.high * 1e6,
                n=row.count,
            )
            for name, row in timings.items()
        ),
        tuple(ratios),
    )
