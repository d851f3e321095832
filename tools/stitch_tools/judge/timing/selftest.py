"""How well this machine times: one program seated twice. Used by scripts/benchmark and by tests."""

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from stitch_tools.confine.free_memory import available_bytes
from stitch_tools.judge.timing.blocks import Rounds, Rules, run_rounds
from stitch_tools.judge.timing.ring import ring_shape
from stitch_tools.judge.timing.seats import Field, Seat, deal, seat_program
from stitch_tools.judge.timing.statistics import Interval
from stitch_tools.machine.device_lock import device_lock
from stitch_tools.machine.devices import cpu_info
from stitch_tools.models import Build, Program, Task
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import Inputs, ReferenceServer, Weights
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store

_SEEDS = (1, 2)
_FIRST, _SECOND = "first", "second"


@dataclass(frozen=True)
class SelfTest:
    """One program against itself, and its own clock against ours."""

    ratio: Interval | None
    """Should be 1; None without an undisturbed round."""
    throughput_s: float
    seat: Seat
    """With the gos that we saw and those that the process noted."""
    visits: int
    left_out: int
    """Visits that were disturbed."""
    wall_s: float
    """Seats and rounds."""


@dataclass(frozen=True)
class _Table:
    """The program and what it is given."""

    place: Field
    program: Program
    build: Build
    weights: Weights
    draws: tuple[Inputs, ...]

    def seat(self, stack: ExitStack) -> list[Seat]:
        """Two processes of the program."""
        seats: list[Seat] = []
        for name in (_FIRST, _SECOND):
            seat = seat_program(
                stack, self.place, self.program, self.build, weights=self.weights, draws=self.draws, samples=0
            )
            seat.name, seat.sampler = name, None
            seat.pause()
            seats.append(seat)
        return seats


def time_against_itself(
    task: Task,
    program: Program,
    build: Build,
    *,
    store: Store,
    folder: Path,
    budget_s: float = 30.0,
    rules: Rules | None = None,
    sittings: int = 1,
) -> SelfTest:
    """The program in two processes, timed like program and baseline.

    With several `sittings` the rounds of `rules` are shared among as many pairs of fresh processes.

    Raises:
        ContestantFailedError: the program cannot be timed.
        LockedError: another process times on this machine.
    """
    rules = rules or Rules()
    with ExitStack() as stack:
        session = stack.enter_context(TargetSession(find_interpreter(None, folder)))
        stack.enter_context(device_lock("cpu", wait_s=600.0, purpose="self-test"))
        judge = stack.enter_context(ReferenceServer(session, task, store))
        facts = judge.observe()
        shape = ring_shape(
            facts, cache_bytes=cpu_info().last_level_cache_bytes, memory_bytes=available_bytes() // 8
        )
        weights, draws = deal(stack, judge, _SEEDS)
        table = _Table(
            Field(session, task, store, facts, shape, _SEEDS, None), program, build, weights, draws
        )
        began = time.monotonic()
        shared = replace(
            rules,
            min_rounds=-(-rules.min_rounds // sittings),
            max_rounds=-(-rules.max_rounds // sittings),
        )
        found = [_sitting(table, shared, budget_s / sittings) for _ in range(sittings)]
        wall_s = time.monotonic() - began
    rounds = found[0][0]
    for more, _ in found[1:]:
        for name, series in more.series.items():
            rounds.series[name].visits.extend(series.visits)
    visits = [visit for series in rounds.series.values() for visit in series.visits]
    return SelfTest(
        ratio=rounds.ratio(_SECOND, _FIRST, "throughput_us"),
        throughput_s=rounds.series[_FIRST].throughput_s(),
        seat=found[-1][1],
        visits=len(visits),
        left_out=sum(not visit.clean for visit in visits),
        wall_s=wall_s,
    )


def _sitting(table: _Table, rules: Rules, budget_s: float) -> tuple[Rounds, Seat]:
    with ExitStack() as stack:
        seats = table.seat(stack)
        until_s = time.monotonic() + budget_s
        rounds = run_rounds(seats, rules=rules, figure="throughput_us", until_s=until_s)
        for seat in seats:
            seat.finish()
    return rounds, seats[0]
