"""Visits, blocks and rounds: who runs when, and what one block measures. The clock is the controller's.

A *block* is a pair of gos, k calls and 2k calls, of at most 20 ms together; the slope between them is the
time per call without the cost of starting and ending a go. Long blocks scatter (12 to 24% of one program
against itself on shared cores), medians of many short ones do not. A *visit* wakes one contestant while all
others are stopped, drops its first calls, and runs a few blocks. A *round* visits every contestant twice in
mirrored order (A B C C B A), the ABBA scheme for any number of contestants: linear drift cancels inside it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, Protocol, TypeVar

from stitch_tools.judge.timing.contestant import ContestantFailedError
from stitch_tools.judge.timing.statistics import (
    Interval,
    half_quartile_distance,
    is_settled,
    median_interval,
    round_ratio,
)
from stitch_tools.machine.interference import (
    Snapshot,
    snapshot,
    steal_share,
    waited_share,
    was_disturbed,
    was_held_up,
)

_SHORTEST_CALL_S = 1e-7
_LONG_CALL_S = 0.2
_CALIBRATIONS, _GROWTH = 8, 16
_SLOWER = 20.0
_FAR_SLOWER = (
    "its calls take more than 20 times as long as at first: they are done before their work is, or held up"
)
Measured = TypeVar("Measured")
Figure = Literal["latency_us", "throughput_us"]


class Caller(Protocol):
    """What makes calls on command."""

    def go(self, calls: int) -> float:
        """Seconds from "go" to "done" for that many calls, by our clock."""
        ...

    def renew(self) -> None:
        """Make the next call's inputs others than ever before, where that is done; no clock sees it."""
        ...


class Contestant(Caller, Protocol):
    """A process that makes calls on command: the program, or one baseline."""

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
class Pace:
    """How often one contestant is called in a block, from its calibrated time per call."""

    calls: int
    """k of the pair k, 2k; of the pair 0, k where `from_zero`."""
    from_zero: bool
    """A call is so long that k + 2k calls do not fit into a block: the slope starts at a go of 0 calls."""
    warm_calls: int
    """Calls dropped after each switch."""
    latency_samples: int
    """Single calls per visit."""
    call_s: float
    """Time per call when it was calibrated."""

    def longest_s(self, rules: "Rules") -> float:
        """How long a visit may take before its calls are not those that were calibrated."""
        calls = self.warm_calls + self.latency_samples + 3 * self.calls * rules.blocks_per_visit
        return rules.slack_s + _SLOWER * calls * self.call_s


@dataclass(frozen=True)
class Rules:
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
    """Seconds after which no more rounds are made where others disturbed every one; None: go on."""
    ignore_others: bool = False
    """Take disturbed blocks as they are: for tests on busy machines, never for a figure that is reported."""
    slack_s: float = 10.0
    """A visit may take so long, and 20 times what its calls took at first: busy machines stay below."""
    max_repeats: int = 6
    """How many blocks of one visit are repeated because others disturbed them."""


@dataclass(frozen=True)
class Block:
    """What one block measured, in seconds per call."""

    slope_s: float
    whole_s: float
    """Of both gos together, with what a go costs by itself; the slope again where one go has no calls."""
    floor_s: float | None = None
    """The go without calls that the slope starts at, where it starts at one."""


@dataclass(frozen=True)
class Visit:
    """What one visit measured, in seconds."""

    slopes_s: tuple[float, ...]
    """Time per call, one per undisturbed block; of all blocks where none was undisturbed."""
    wholes_s: tuple[float, ...]
    """Of the same blocks: the time of both gos by their calls, less what gos cost by themselves."""
    latencies_s: tuple[float, ...]
    """Go 1, one call on an idle device."""
    floors_s: tuple[float, ...]
    """Go 0: what a go costs without a call."""
    total_s: float
    """Time per call of all gos together, first and last ones included, less what gos cost by themselves."""
    pace_calls: int = 1
    """k of its blocks."""
    slope_floors_s: tuple[float, ...] = ()
    """By slope, the go 0 that was taken off; () where slopes lie between two gos with calls."""
    empty_s: tuple[float, ...] = ()
    """Every go 0, also of blocks that were thrown away."""
    gos: int = 0
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
        """One call, without the cost of the go itself."""
        return median(self.latencies_s) - median(self.floors_s)


@dataclass
class Series:
    """All visits of one contestant, two per round."""

    visits: list[Visit] = field(default_factory=list[Visit])

    def values(self, figure: Figure) -> list[float]:
        """One value per visit."""
        if figure == "throughput_us":
            return [visit.throughput_s for visit in self.visits]
        return [visit.latency_s for visit in self.visits]

    def totals(self) -> list[float]:
        """Time per call over all gos, one value per visit."""
        return [visit.total_s for visit in self.visits]

    def throughput_s(self) -> float:
        """Median over all blocks."""
        return median(slope for visit in self.visits for slope in visit.slopes_s)

    def throughput_spread_s(self) -> float | None:
        """Half the distance between the quartiles of the blocks."""
        return half_quartile_distance([slope for visit in self.visits for slope in visit.slopes_s])

    def latency_s(self) -> float:
        """Median of go 1 minus median of go 0."""
        ones = median(value for visit in self.visits for value in visit.latencies_s)
        return ones - median(value for visit in self.visits for value in visit.floors_s)

    def latency_spread_s(self) -> float | None:
        """Half the distance between the quartiles of the single calls."""
        return half_quartile_distance([value for visit in self.visits for value in visit.latencies_s])

    @property
    def blocks(self) -> int:
        """Blocks that count."""
        return sum(len(visit.slopes_s) for visit in self.visits)


Watch = Callable[[], Snapshot]


def calibrate(contestant: Contestant, rules: Rules) -> Pace:
    """The pace of one contestant, from the quickest of three gos of about a quarter block."""
    contestant.go(1)

    def quickest(calls: int) -> float:
        return min(contestant.go(calls) for _ in range(3))

    def quarter_block() -> int:
        """Calls that take about a quarter of a block; 0 where one takes longer."""
        return int(rules.block_s / 4.0 / per_call)

    floor = quickest(0)
    per_call, calls = max(quickest(1) - floor, _SHORTEST_CALL_S), 1
    for _ in range(_CALIBRATIONS):
        # Others may have taken time from the empty gos: then one call seems to take none.
        calls = max(1, min(quarter_block(), _GROWTH * calls))
        per_call = max((quickest(calls) - floor) / calls, _SHORTEST_CALL_S)
        if calls * per_call >= rules.block_s / 8.0 or quarter_block() <= 1:
            break
    calls = int((rules.short_block_s or rules.block_s) / 3.0 / per_call) or int(
        rules.block_s / 3.0 / per_call
    )
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


def _single_calls(per_call: float, rules: Rules) -> int:
    if per_call > _LONG_CALL_S:
        return 1
    return max(2, min(rules.latency_samples, int(rules.block_s / per_call)))


def measure_singles(contestant: Caller, pace: Pace) -> list[tuple[float, float]]:
    """Pairs of (go 0, go 1) in seconds, one call at a time on an idle device."""
    return [_single(contestant) for _ in range(pace.latency_samples)]


def _single(contestant: Caller) -> tuple[float, float]:
    contestant.renew()
    return contestant.go(0), contestant.go(1)


def measure_block(contestant: Caller, pace: Pace) -> Block:
    """The slope between the two gos of one block, and their whole time."""
    if pace.from_zero:
        floor = contestant.go(0)
        slope_s = (contestant.go(pace.calls) - floor) / pace.calls
        return Block(slope_s, slope_s, floor)
    short = contestant.go(pace.calls)
    long = contestant.go(2 * pace.calls)
    return Block((long - short) / pace.calls, (short + long) / (3 * pace.calls))


def visit(contestant: Contestant, pace: Pace, rules: Rules, watch: Watch = snapshot) -> Visit:
    """Wake the contestant, drop its first calls, measure single calls and blocks, stop it again.

    Raises:
        ContestantFailedError: a call failed, or calls take far longer than when they were calibrated and
            nobody else held them up.
    """
    attempts = _Attempts(rules, watch, contestant.name, pace.longest_s(rules))
    ledger = _Ledger(contestant)
    contestant.resume()
    try:
        ledger.go(pace.warm_calls)
        singles, singles_clean = attempts.undisturbed(lambda: measure_singles(ledger, pace))
        if pace.from_zero and pace.calls == 1:
            # A block would be the same measurement again, and such calls are long.
            blocks = [(Block(one - floor, one - floor, floor), singles_clean) for floor, one in singles]
        else:
            blocks = [
                attempts.undisturbed(lambda: measure_block(ledger, pace))
                for _ in range(rules.blocks_per_visit)
            ]
    finally:
        contestant.pause()
    floors, latencies = zip(*singles, strict=True)
    clean = [block for block, is_clean in blocks if is_clean]
    counted = clean or [block for block, _ in blocks]
    gos_s = 0.0 if pace.from_zero else 2.0 * min(floors) / (3 * pace.calls)
    return Visit(
        slopes_s=tuple(block.slope_s for block in counted),
        wholes_s=tuple(block.whole_s - gos_s for block in counted),
        latencies_s=latencies,
        floors_s=floors,
        total_s=ledger.per_call_s(min(floors)),
        pace_calls=pace.calls,
        slope_floors_s=tuple(block.floor_s for block in counted if block.floor_s is not None),
        empty_s=tuple(ledger.empty_s),
        gos=ledger.gos,
        calls=ledger.calls,
        repeats=attempts.repeats,
        disturbed=len(blocks) - len(clean),
        clean=singles_clean and bool(clean),
    )


class _Ledger:
    """A contestant whose gos are added up."""

    def __init__(self, contestant: Contestant) -> None:
        self._contestant = contestant
        self.gos = self.calls = 0
        self.empty_s: list[float] = []
        self._seconds = 0.0

    def go(self, calls: int) -> float:
        elapsed = self._contestant.go(calls)
        if calls:
            self.gos, self.calls = self.gos + 1, self.calls + calls
            self._seconds += elapsed
        else:
            self.empty_s.append(elapsed)
        return elapsed

    def renew(self) -> None:
        self._contestant.renew()

    def per_call_s(self, go_s: float) -> float:
        return (self._seconds - self.gos * go_s) / self.calls


class _Attempts:
    """Repeats a measurement while others disturb it, a limited number of times per visit."""

    def __init__(self, rules: Rules, watch: Watch, name: str, longest_s: float) -> None:
        self._rules, self._watch = rules, watch
        self._name = name
        self._began = watch()
        self._until_s = time.monotonic() + longest_s
        self.repeats = 0

    def undisturbed(self, measure: Callable[[], Measured]) -> tuple[Measured, bool]:
        while True:
            late = time.monotonic() > self._until_s
            if late and (self._rules.ignore_others or not was_held_up(self._began, self._watch())):
                # Work that goes on behind "done" holds up later gos: calls seem short until a queue is full.
                raise ContestantFailedError(self._name, _FAR_SLOWER)
            before = self._watch()
            measured = measure()
            if self._rules.ignore_others or not was_disturbed(before, self._watch()):
                return measured, True
            # Threads that wait for each other take any time where others have their CPUs: that is no fault.
            if late or self.repeats >= self._rules.max_repeats:
                return measured, False
            self.repeats += 1


@dataclass(frozen=True)
class Rounds:
    """Everything that one timing run measured."""

    series: dict[str, Series]
    """By contestant; the first one is the program."""
    began: Snapshot
    ended: Snapshot

    @property
    def steal_share(self) -> float | None:
        """Share of the machine's time that the hypervisor took."""
        return steal_share(self.began, self.ended)

    @property
    def waited_share(self) -> float | None:
        """Share of the time in which some task had to wait for a CPU."""
        return waited_share(self.began, self.ended)

    def ratio(self, baseline: str, program: str, figure: Figure) -> Interval | None:
        """The speed-up over one baseline with its interval, one ratio per round; None without any round."""
        values = ratios(self.series[baseline], self.series[program], figure)
        return median_interval(values) if values else None

    def whole_ratio(self, baseline: str, program: str) -> Interval | None:
        """The same by the time of all gos of a visit; None without any round."""
        theirs, ours = self.series[baseline], self.series[program]
        values = _ratios(theirs, ours, theirs.totals(), ours.totals())
        return median_interval(values) if values else None


def ratios(baseline: Series, program: Series, figure: Figure) -> list[float]:
    """One speed-up per round, from the two mirrored visits of each; disturbed rounds are left out."""
    return _ratios(baseline, program, baseline.values(figure), program.values(figure))


def _ratios(baseline: Series, program: Series, theirs: Sequence[float], ours: Sequence[float]) -> list[float]:
    found: list[float] = []
    for first in range(0, min(len(theirs), len(ours)) - 1, 2):
        pair = slice(first, first + 2)
        clean = all(visit.clean for visit in (*baseline.visits[pair], *program.visits[pair]))
        if clean and min(*theirs[pair], *ours[pair]) > 0.0:
            found.append(round_ratio(theirs[pair], ours[pair]))
    return found


def run_rounds(
    contestants: Sequence[Contestant],
    *,
    rules: Rules,
    figure: Figure,
    until_s: float,
    hard_until_s: float | None = None,
    watch: Watch = snapshot,
    after_visit: Callable[[Contestant], None] | None = None,
) -> Rounds:
    """Visit all contestants in mirrored rounds until the ratios settle.

    No round begins after the monotonic time `until_s`, but for the fewest rounds (`rules.min_rounds`), which
    long calls may finish until `hard_until_s`; none after `rules.give_up_s` in vain. What was measured by
    then counts; too few undisturbed rounds are inconclusive by themselves.
    """
    paces: dict[str, Pace] = {}
    for contestant in contestants:
        contestant.resume()
        paces[contestant.name] = calibrate(contestant, rules)
        contestant.pause()
    began = watch()
    rounds = Rounds({contestant.name: Series() for contestant in contestants}, began, began)
    done = 0
    last_s = until_s if hard_until_s is None else hard_until_s
    give_up_s = float("inf") if rules.give_up_s is None else time.monotonic() + rules.give_up_s
    while not done or time.monotonic() < (last_s if done < rules.min_rounds else until_s):
        done += 1
        for contestant in [*contestants, *reversed(contestants)]:
            rounds.series[contestant.name].visits.append(
                visit(contestant, paces[contestant.name], rules, watch)
            )
            if after_visit is not None:
                after_visit(contestant)
        if done >= rules.min_rounds and _is_enough(rounds, contestants, rules, figure):
            break
        if time.monotonic() >= give_up_s and _is_hopeless(rounds, contestants, figure):
            break
    return Rounds(rounds.series, began, watch())


def _is_hopeless(rounds: Rounds, contestants: Sequence[Contestant], figure: Figure) -> bool:
    """Whether no round gave a ratio to any baseline."""
    program, *baselines = (contestant.name for contestant in contestants)
    return bool(baselines) and all(rounds.ratio(name, program, figure) is None for name in baselines)


def _is_enough(rounds: Rounds, contestants: Sequence[Contestant], rules: Rules, figure: Figure) -> bool:
    program, *baselines = (contestant.name for contestant in contestants)
    for baseline in baselines:
        interval = rounds.ratio(baseline, program, figure)
        if interval is None or interval.count < rules.min_rounds:
            return False
        if interval.count < rules.max_rounds and not is_settled(interval):
            return False
    return True
