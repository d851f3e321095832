"""Is the work done when a call returns, or when somebody fetches its outputs?

A program in Python gives its own tensors back, and its own process copies them for us: memory that computes
when it is read, or a function of ours that the program exchanged, could do the work there, while no clock
runs. So what a program saves by the clock it must also save, for the larger part, in calls whose outputs are
all fetched, beside a baseline whose outputs are fetched, too.
"""

from dataclasses import dataclass

from stitch_tools.judge.timing.probes.probe import ProbeContext, ProbeReport, Stage
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.timed_process import RunnerFailedError
from stitch_tools.models.conditions import TimingDoubt

_HOLD_OUTPUTS = ("eager", "compile:default")
_ATTEMPTS = 3
_BATCH_S = 0.05
# So much of what is saved by the clock must be left.
_KEPT_SHARE = 0.5
# By so much a call may save less for no reason.
_ABSOLUTE_S = 3e-6
_GAIN = 1.05


@dataclass(frozen=True)
class DeferredWork:
    """Times calls together with fetching their outputs, where the program's own process fetches them."""

    stage: Stage = "running"

    def look(self, context: ProbeContext) -> ProbeReport:
        """A doubt where what is saved by the clock is not saved once outputs are fetched."""
        program = context.program
        sampler = program.sampler
        baseline = next((row for row in context.runners if row.name in _HOLD_OUTPUTS), None)
        if sampler is None or sampler.live or baseline is None:
            return ProbeReport()
        program_s = max(context.throughput_s, 0.0)
        baseline_s = context.rounds.series[baseline.name].throughput_s()
        if baseline_s <= _GAIN * program_s:
            return ProbeReport()
        calls = max(1, min(program.slots, baseline.slots, int(_BATCH_S / baseline_s)))
        claimed_s = calls * (baseline_s - program_s)
        own_s = other_s = float("inf")
        for _ in range(_ATTEMPTS):
            sampler.ring.poison(program.slot, calls)
            own_s = min(own_s, _seconds(program, calls))
            try:
                # The first time it makes the memory that outputs go to.
                other_s = min(other_s, *(_seconds(baseline, calls) for _ in range(2)))
            except RunnerFailedError:
                return ProbeReport()  # nothing stands beside the program
            if other_s - own_s >= _KEPT_SHARE * claimed_s - calls * _ABSOLUTE_S:
                return ProbeReport()
        doubt = TimingDoubt(
            rule="deferred_work",
            observed=(other_s - own_s) / calls * 1e6,
            expected=claimed_s / calls * 1e6,
            baseline=baseline.name,
        )
        return ProbeReport((doubt,))


def _seconds(runner: Runner, calls: int) -> float:
    """Of a batch and of fetching all its outputs."""
    runner.resume()
    runner.run_calls(0)
    seconds = runner.run_calls(calls) + runner.fetch_latest(calls)
    runner.pause()
    return seconds
