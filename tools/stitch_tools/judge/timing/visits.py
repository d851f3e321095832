"""Time one process: a visit of a few blocks. The clock is the controller's.

A *batch* is a number of calls that the controller asks for at once; it costs something even without any call.
A *block* is a pair of batches, k calls and 2k calls, of at most 20 ms together; the slope between them is the
time per call without that cost. Long blocks scatter (12 to 24% of one program against itself on shared
cores), medians of many short ones do not. A *visit* wakes one process while all others are stopped, drops its
first calls, and runs a few blocks.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol, TypeVar

from stitch_tools.judge.timing.timed_process import RunnerFailedError
from stitch_tools.machine.interference import Snapshot, snapshot, was_disturbed, was_held_up

_SHORTEST_CALL_S = 1e-7
_LONG_CALL_S = 0.2
_CALIBRATIONS, _GROWTH = 8, 16
_SLOWER = 20.0
_FAR_SLOWER = (
    "its calls take more than 20 times as long as at first: they are done before their work is, or held up"
)
Measured = TypeVar("Measured")
Watch = Callable[[], Snapshot]


class Contestant(Protocol):
    """A process that makes calls on command: the program, or one baseline."""

    def run_calls(self, calls: int) -> float:
        """Make a batch of calls; seconds by our clock, from the request to the answer."""
        ...

    def renew(self) -> None:
        """Give the next call new inputs, where that is done; it enters no time."""
        ...

    @property
    def name(self) -> str:
        """What the bench calls it."""
        ...

    def pause(self) -> None:
        """Stop the process with all its threads and children."""
        ...

    def resume(self) -> None:
        """Let it run again."""
        ...


@dataclass(frozen=True)
class TimingRules:
    """Lengths and counts of one timing run."""

    block_s: float = 0.020
    """Longest block, as long as two calls fit into it."""
    short_block_s: float | None = None
    """Longest block of calls of which three fit into this; None: `block_s`."""
    warm_s: float = 0.005
    blocks_per_visit: int = 3
    latency_samples: int = 5
    min_rounds: int = 10
    max_rounds: int = 40
    """Undisturbed rounds after which a wide interval is left as it is."""
    give_up_s: float | None = None
    """Seconds after which no more rounds are made where others disturbed every one; None: continue."""
    ignore_others: bool = False
    """Take disturbed blocks as they are: for tests on busy machines, never for a figure that is reported."""
    slack_s: float = 10.0
    """A visit may take so long, and 20 times what its calls took at first: busy machines stay below."""
    max_repeats: int = 6
    """How many blocks of one visit are repeated because others disturbed them."""


@dataclass(frozen=True)
class Pace:
    """How often one contestant is called in a block, from its calibrated time per call."""

    calls: int
    """k of the pair k, 2k; of the pair 0, k where `from_zero`."""
    from_zero: bool
    """A call is so long that k + 2k calls do not fit into a block: the slope starts at a batch of 0 calls."""
    warm_calls: int
    """Calls dropped after each switch."""
    latency_samples: int
    """Single calls per visit."""
    call_s: float
    """Time per call when it was calibrated."""

    def longest_s(self, rules: TimingRules) -> float:
        """How long a visit may take before its calls are not those that were calibrated."""
        calls = self.warm_calls + self.latency_samples + 3 * self.calls * rules.blocks_per_visit
        return rules.slack_s + _SLOWER * calls * self.call_s


@dataclass(frozen=True)
class TimedBlock:
    """What one block measured, in seconds per call."""

    slope_s: float
    whole_s: float
    """Of both batches together, with what a batch costs; the slope again where one of them has no calls."""
    overhead_s: float | None = None
    """The empty batch that the slope starts at, where it starts at one."""


@dataclass(frozen=True)
class Visit:
    """What one visit measured, in seconds."""

    slopes_s: tuple[float, ...]
    """Time per call, one per undisturbed block; of all blocks where none was undisturbed."""
    wholes_s: tuple[float, ...]
    """Of the same blocks: the time of both batches by their calls, less what batches cost by themselves."""
    latencies_s: tuple[float, ...]
    """Batches of one call on an idle device."""
    overheads_s: tuple[float, ...]
    """Empty batches, each before a batch of one call: what a batch costs without a call."""
    total_s: float
    """Time per call of all batches together, first and last ones included, less what batches cost."""
    pace_calls: int = 1
    """k of its blocks."""
    slope_overheads_s: tuple[float, ...] = ()
    """By slope, the empty batch that was taken off; () where slopes lie between two batches with calls."""
    all_overheads_s: tuple[float, ...] = ()
    """Every empty batch, also of blocks that were thrown away."""
    batches: int = 0
    """With calls, `calls` together: what `total_s` is made of."""
    calls: int = 1
    repeats: int = 0
    """Blocks thrown away because others took time from them."""
    disturbed: int = 0
    """Blocks that were disturbed in every repetition."""
    clean: bool = True
    """Whether singles and at least one block were undisturbed: only then does the visit enter a ratio."""

    @property
    def throughput_s(self) -> float:
        """Median time per call of back-to-back calls."""
        return median(self.slopes_s)

    @property
    def latency_s(self) -> float:
        """One call, without the cost of its batch."""
        return median(self.latencies_s) - median(self.overheads_s)


def calibrate(contestant: Contestant, rules: TimingRules) -> Pace:
    """The pace of one contestant, from the quickest of three batches of about a quarter block."""
    contestant.run_calls(1)

    def quickest(calls: int) -> float:
        return min(contestant.run_calls(calls) for _ in range(3))

    def quarter_block() -> int:
        """Calls that take about a quarter of a block; 0 where one takes longer."""
        return int(rules.block_s / 4.0 / per_call)

    overhead = quickest(0)
    per_call, calls = max(quickest(1) - overhead, _SHORTEST_CALL_S), 1
    for _ in range(_CALIBRATIONS):
        # Others may have delayed the empty batches: then one call seems to take no time. So grow slowly.
        calls = max(1, min(quarter_block(), _GROWTH * calls))
        per_call = max((quickest(calls) - overhead) / calls, _SHORTEST_CALL_S)
        if calls * per_call >= rules.block_s / 8.0 or quarter_block() <= 1:
            break
    shortest_s = rules.short_block_s or rules.block_s
    calls = int(shortest_s / 3.0 / per_call) or int(rules.block_s / 3.0 / per_call)
    from_zero = calls < 1
    if from_zero:
        calls = max(1, int(rules.block_s / per_call))
    return Pace(
        calls=calls,
        from_zero=from_zero,
        warm_calls=max(1 if from_zero else 2, int(rules.warm_s / per_call)),
        latency_samples=_single_calls(per_call, rules),
        call_s=per_call,
    )


def _single_calls(per_call: float, rules: TimingRules) -> int:
    if per_call > _LONG_CALL_S:
        return 1
    return max(2, min(rules.latency_samples, int(rules.block_s / per_call)))


def _measure_single_calls(caller: "_Counter", pace: Pace) -> list[tuple[float, float]]:
    """Seconds of an empty batch and of one call, in pairs, each on an idle device."""
    pairs: list[tuple[float, float]] = []
    for _ in range(pace.latency_samples):
        caller.renew()
        pairs.append((caller.run_calls(0), caller.run_calls(1)))
    return pairs


def _measure_block(caller: "_Counter", pace: Pace) -> TimedBlock:
    """The slope between the two batches of one block, and their whole time."""
    if pace.from_zero:
        overhead_s = caller.run_calls(0)
        slope_s = (caller.run_calls(pace.calls) - overhead_s) / pace.calls
        return TimedBlock(slope_s, slope_s, overhead_s)
    short_s = caller.run_calls(pace.calls)
    long_s = caller.run_calls(2 * pace.calls)
    return TimedBlock((long_s - short_s) / pace.calls, (short_s + long_s) / (3 * pace.calls))


def visit(contestant: Contestant, pace: Pace, rules: TimingRules, watch: Watch = snapshot) -> Visit:
    """Wake the contestant, drop its first calls, measure single calls and blocks, stop it again.

    Raises:
        RunnerFailedError: a call failed, or calls take far longer than when they were calibrated and
            nobody else held them up.
    """
    attempts = _Attempts(rules, watch, contestant.name, pace.longest_s(rules))
    counter = _Counter(contestant)
    contestant.resume()
    try:
        counter.run_calls(pace.warm_calls)
        singles, singles_clean = attempts.undisturbed(lambda: _measure_single_calls(counter, pace))
        if pace.from_zero and pace.calls == 1:
            # A block would be the same measurement again, and such calls are long.
            blocks = [(TimedBlock(one - none, one - none, none), singles_clean) for none, one in singles]
        else:
            blocks = [
                attempts.undisturbed(lambda: _measure_block(counter, pace))
                for _ in range(rules.blocks_per_visit)
            ]
    finally:
        contestant.pause()
    overheads, latencies = zip(*singles, strict=True)
    clean = [block for block, is_clean in blocks if is_clean]
    counted = clean or [block for block, _ in blocks]
    two_batches_s = 0.0 if pace.from_zero else 2.0 * min(overheads) / (3 * pace.calls)
    return Visit(
        slopes_s=tuple(block.slope_s for block in counted),
        wholes_s=tuple(block.whole_s - two_batches_s for block in counted),
        latencies_s=latencies,
        overheads_s=overheads,
        total_s=counter.per_call_s(min(overheads)),
        pace_calls=pace.calls,
        slope_overheads_s=tuple(block.overhead_s for block in counted if block.overhead_s is not None),
        all_overheads_s=tuple(counter.overheads_s),
        batches=counter.batches,
        calls=counter.calls,
        repeats=attempts.repeats,
        disturbed=len(blocks) - len(clean),
        clean=singles_clean and bool(clean),
    )


class _Counter:
    """Adds up the batches of one contestant."""

    def __init__(self, contestant: Contestant) -> None:
        self._contestant = contestant
        self.batches = self.calls = 0
        self.overheads_s: list[float] = []
        self._seconds = 0.0

    def run_calls(self, calls: int) -> float:
        elapsed = self._contestant.run_calls(calls)
        if calls:
            self.batches, self.calls = self.batches + 1, self.calls + calls
            self._seconds += elapsed
        else:
            self.overheads_s.append(elapsed)
        return elapsed

    def renew(self) -> None:
        self._contestant.renew()

    def per_call_s(self, overhead_s: float) -> float:
        return (self._seconds - self.batches * overhead_s) / self.calls


class _Attempts:
    """Repeats a measurement while others disturb it, a limited number of times per visit."""

    def __init__(self, rules: TimingRules, watch: Watch, name: str, longest_s: float) -> None:
        self._rules, self._watch = rules, watch
        self._name = name
        self._began = watch()
        self._until_s = time.monotonic() + longest_s
        self.repeats = 0

    def undisturbed(self, measure: Callable[[], Measured]) -> tuple[Measured, bool]:
        while True:
            late = time.monotonic() > self._until_s
            if late and (self._rules.ignore_others or not was_held_up(self._began, self._watch())):
                # Work that a program continues after its answer delays later batches: its calls seem short
                # until a queue is full.
                raise RunnerFailedError(self._name, _FAR_SLOWER)
            before = self._watch()
            measured = measure()
            if self._rules.ignore_others or not was_disturbed(before, self._watch()):
                return measured, True
            # Threads that wait for each other take any time where others have their CPUs: no fault of theirs.
            if late or self.repeats >= self._rules.max_repeats:
                return measured, False
            self.repeats += 1
