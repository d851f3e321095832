"""The contestants of one timing: start them, run their rounds, leave out baselines that fail, end them."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from stitch_tools.judge.timing.gpu_watch import GpuWatch
from stitch_tools.judge.timing.options import BenchOptions
from stitch_tools.judge.timing.program_runners import PROGRAM
from stitch_tools.judge.timing.rounds import Figure, Rounds, run_rounds
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.timed_process import RunnerFailedError
from stitch_tools.judge.timing.visits import Contestant, TimingRules, Watch
from stitch_tools.machine.device_lock import refuse_after
from stitch_tools.machine.interference import snapshot, waits_of
from stitch_tools.models.verdict import Timing

# The fewest rounds of very long calls may take so many budgets.
_LONGEST = 4.0
# Single calls per visit where they are the headline: each carries the jitter of two wake-ups.
_LATENCY_SAMPLES = 40
# Single calls per visit of a quick run whose headline they are not: 40 in all its rounds.
_QUICK_SINGLES = 2
# Others disturb half as many blocks as of 20 ms: rounds of calls under 3 ms took 3 to 4 s, not 8 to 11.
_QUICK_BLOCK_S = 0.010
_HOPELESS_S = 10.0  # So long without a round that nobody disturbed ends a quick run.
_NOTE_CHARS = 300


@dataclass
class Contestants:
    """The program first, then whatever stands beside it. Only the program's failure ends the timing."""

    options: BenchOptions
    figure: Figure
    say: Callable[[str], None]
    stop: threading.Event | None
    deadline_s: float | None = None
    """A time.monotonic() value after which no round begins but the first."""
    runners: list[Runner] = field(default_factory=list[Runner])
    absent: list[Timing] = field(default_factory=list[Timing])
    """Contestants that could not be measured, with the reason."""

    def add(self, stack: ExitStack, name: str, start: Callable[[ExitStack], Runner]) -> None:
        """Start one more contestant, or note why there is none."""
        refuse_after(self.stop)
        self.say(f"preparing {name}")
        own = stack.enter_context(ExitStack())
        try:
            runner = start(own)
            runner.pause()
            self.runners.append(runner)
        except RunnerFailedError as failure:
            own.close()
            self.leave_out(name, failure.reason)

    def is_hopeless(self, name: str) -> bool:
        """Whether a baseline is left out, since the time is over; eager never is: all ratios are to it."""
        late = self.deadline_s is not None and time.monotonic() > self.deadline_s
        if not late or name == "eager":
            return False
        self.leave_out(name, "the time limit was reached before it was prepared")
        return True

    def limit_s(self, name: str, most_s: float) -> float:
        """How long a baseline may be prepared: at most half of the time left, which the rounds need too.

        Eager has all: without it nothing can be told, and it compiles nothing.
        """
        if self.deadline_s is None or name == "eager":
            return most_s
        return min(most_s, max((self.deadline_s - time.monotonic()) / 2, 0.0))

    def leave_out(self, name: str, reason: str) -> None:
        """Take a contestant out of the timing, with the reason."""
        self.runners[:] = [runner for runner in self.runners if runner.name != name]
        self.say(f"{name} is not measured: {reason}")
        first_line = reason.strip().splitlines()[0] if reason.strip() else "no reason was given"
        self.absent.append(Timing(name=name, latency_us=None, note=first_line[:_NOTE_CHARS]))

    def run_rounds(self, watch: GpuWatch | None) -> Rounds:
        """Run the rounds; a baseline that fails meanwhile leaves, and the rounds begin anew without it.

        Raises:
            RunnerFailedError: the program failed.
        """

        def read(contestant: Contestant) -> None:
            refuse_after(self.stop)
            if watch is not None and contestant.name == PROGRAM:
                watch.read()

        budget_s = self.options.rounds_s
        last_s = float("inf") if self.deadline_s is None else self.deadline_s
        while True:
            self.say(f"timing {', '.join(runner.name for runner in self.runners)}")
            now_s = time.monotonic()
            try:
                for runner in self.runners:
                    runner.pause()
                return run_rounds(
                    self.runners,
                    rules=self._rules(),
                    figure=self.figure,
                    until_s=min(now_s + budget_s, last_s),
                    hard_until_s=min(now_s + _LONGEST * budget_s, last_s),
                    after_visit=read,
                    watch_of=_own_waits(self.runners) if self.figure == "latency_us" else None,
                )
            except RunnerFailedError as failure:
                if failure.name == PROGRAM:
                    raise
                self.leave_out(failure.name, failure.reason)

    def _rules(self) -> TimingRules:
        rules = self.options.rules
        if self.figure == "latency_us":
            rules = replace(rules, latency_samples=max(rules.latency_samples, _LATENCY_SAMPLES))
        if self.options.quick:
            rules = replace(rules, max_rounds=rules.min_rounds, give_up_s=_HOPELESS_S)
            if self.figure == "throughput_us":
                rules = replace(rules, latency_samples=_QUICK_SINGLES, short_block_s=_QUICK_BLOCK_S)
            else:
                # Three blocks of a visit took 60 of its 95 ms, for a figure that is not the headline; all
                # visits together still make twenty.
                rules = replace(rules, blocks_per_visit=1)
        return rules

    def finish(self) -> None:
        """End all loops.

        Raises:
            RunnerFailedError: the program failed.
        """
        for runner in self.runners:
            try:
                runner.finish()
            except RunnerFailedError as failure:
                if runner.name == PROGRAM:
                    raise
                self.say(f"{runner.name}: {failure.reason}")


def _own_waits(runners: Sequence[Runner]) -> Callable[[Contestant], Watch]:
    """For each runner what tells whether it, or we, waited for a CPU; else what the machine tells."""
    watches = {row.name: waits_of((row.child.pid, threading.get_native_id())) or snapshot for row in runners}

    def watch_of(contestant: Contestant) -> Watch:
        return watches[contestant.name]

    return watch_of
