"""How well this machine times: one program seated twice. Used by scripts/benchmark and by tests."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.check.reference import ReferenceServer
from stitch_tools.device import cpu_info
from stitch_tools.models import Build, Program, Task
from stitch_tools.processes.interpreter import find_interpreter
from stitch_tools.processes.session import TargetSession
from stitch_tools.store import Store
from stitch_tools.timing.blocks import Rules, run_rounds
from stitch_tools.timing.device_lock import device_lock
from stitch_tools.timing.ring import available_bytes, ring_shape
from stitch_tools.timing.seats import Field, Seat, deal, seat_program
from stitch_tools.timing.statistics import Interval

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


def time_against_itself(
    task: Task,
    program: Program,
    build: Build,
    *,
    store: Store,
    folder: Path,
    budget_s: float = 30.0,
    rules: Rules | None = None,
) -> SelfTest:
    """The program in two processes, timed like program and baseline.

    Raises:
        ContestantFailedError: the program cannot be timed.
        LockedError: another process times on this machine.
    """
    with ExitStack() as stack:
        session = stack.enter_context(TargetSession(find_interpreter(None, folder)))
        stack.enter_context(device_lock("cpu", wait_s=600.0, purpose="self-test"))
        judge = stack.enter_context(ReferenceServer(session, task, store))
        facts = judge.observe()
        shape = ring_shape(
            facts, cache_bytes=cpu_info().last_level_cache_bytes, memory_bytes=available_bytes() // 8
        )
        place = Field(session, task, store, facts, shape, _SEEDS, None)
        weights, draws = deal(stack, judge, _SEEDS)
        seats: list[Seat] = []
        for name in (_FIRST, _SECOND):
            seat = seat_program(stack, place, program, build, weights=weights, draws=draws, samples=0)
            seat.name, seat.sampler = name, None
            seat.pause()
            seats.append(seat)
        rounds = run_rounds(
            seats, rules=rules or Rules(), figure="throughput_us", until_s=time.monotonic() + budget_s
        )
        for seat in seats:
            seat.finish()
        visits = [visit for series in rounds.series.values() for visit in series.visits]
        return SelfTest(
            ratio=rounds.ratio(_SECOND, _FIRST, "throughput_us"),
            throughput_s=rounds.series[_FIRST].throughput_s(),
            seat=seats[0],
            visits=len(visits),
            left_out=sum(not visit.clean for visit in visits),
        )
