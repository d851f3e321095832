"""What a program saves by the clock it must save where all its outputs are fetched, too.

What takes time here are pauses of milliseconds, so that a busy machine changes little.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from stitch_tools.judge.timing.baseline_seats import seat_baseline
from stitch_tools.judge.timing.blocks import Rounds, Series, Visit
from stitch_tools.judge.timing.contestant import ContestantFailedError
from stitch_tools.judge.timing.fetching import left_for_the_fetch
from stitch_tools.judge.timing.recheck import recheck
from stitch_tools.judge.timing.ring import RingShape
from stitch_tools.judge.timing.seats import Field, deal, seat_program
from stitch_tools.machine.interference import snapshot
from stitch_tools.models import Program
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import AFFINE, AFFINE_NEW, affine_program, build, make_task, model_new

SEEDS = (11, 12, 13)
SLOTS = 8
EAGER_S = 0.005
SLOW = AFFINE.replace("return x * 2.0", "import time; time.sleep(0.005); return x * 2.0", 1)
LATER = """
import time, torch

class Later(torch.Tensor):
    @property
    def shape(self):
        if self.__dict__.pop("waits", False):
            time.sleep(0.005)
            {then}
        return super().shape

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x).as_subclass(Later)
        y.x, y.waits = x, True
        return y
"""
COMPUTES_LATER = LATER.replace("{then}", "self.as_subclass(torch.Tensor).copy_(self.x * 2.0 + 1.0)")
NEVER_COMPUTES = LATER.replace("{then}", "pass")
TUPLE = "return [x * 2.0 + 1.0, (x > 0).sum()]"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSession]:
    root = tmp_path_factory.mktemp("fetching")
    with TargetSession(find_interpreter(None, root), threads=1) as session:
        yield session


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("fetching") / "store")


def looked_at(
    session: TargetSession,
    store: Store,
    program: Program,
    *,
    program_s: float,
    reference: str = SLOW,
    baseline: str = "eager",
) -> tuple[str | None, str | None]:
    """The doubt about a program whose calls take `program_s` by the clock, and what is wrong with it."""
    rounds = Rounds(
        {name: said(seconds) for name, seconds in (("program", program_s), (baseline, EAGER_S))},
        snapshot(),
        snapshot(),
    )
    with ExitStack() as stack:
        task = make_task(store, reference)
        judge = stack.enter_context(ReferenceServer(session, task, store))
        shape = RingShape(SLOTS, len(SEEDS), SLOTS << 17)
        cache = store.root.parent / "cache"
        place = Field(session, task, store, judge.observe(), shape, SEEDS, cache)
        weights, draws = deal(stack, judge, SEEDS)
        built = build(program, store) if program.format == "native" else None
        seats = [
            seat_program(stack, place, program, built, weights=weights, draws=draws, samples=3),
            seat_baseline(stack, place, baseline, compile_limit_s=60.0),
        ]
        for seat in seats:
            seat.pause()
        doubt = left_for_the_fetch(seats[0], seats, rounds)
        wrong = "no output was taken"
        if seats[0].sampler is not None and not seats[0].sampler.live and seats[0].sampler.samples:
            wrong, _ = recheck(judge, task, place.facts, SEEDS, seats[0])
    return doubt, wrong


def said(seconds: float) -> Series:
    return Series([Visit((seconds,), (seconds,), (1.0,), (1.0,), seconds)])


def test_a_program_that_saves_what_the_clock_says_is_not_doubted(
    session: TargetSession, store: Store
) -> None:
    assert looked_at(session, store, model_new(store, AFFINE_NEW), program_s=20e-6) == (None, None)


def test_outputs_of_several_kinds_are_fetched(session: TargetSession, store: Store) -> None:
    reference = SLOW.replace("return x * 2.0 + 1.0", TUPLE)
    program = model_new(store, AFFINE_NEW.replace("return x * 2.0 + 1.0", TUPLE))
    assert looked_at(session, store, program, program_s=20e-6, reference=reference) == (None, None)


def test_work_that_is_done_when_outputs_are_fetched_is_no_gain(session: TargetSession, store: Store) -> None:
    doubt, wrong = looked_at(session, store, model_new(store, COMPUTES_LATER), program_s=20e-6)
    assert doubt is not None
    assert "by the clock a call saves 4980.00 us beside eager" in doubt
    assert "put off until somebody looks" in doubt
    assert wrong is None


def test_outputs_that_nobody_computed_are_wrong(session: TargetSession, store: Store) -> None:
    _, wrong = looked_at(session, store, model_new(store, NEVER_COMPUTES), program_s=20e-6)
    assert wrong is not None
    assert "another result than the check" in wrong


@pytest.mark.parametrize("form", ["native", "no gain"])
def test_what_needs_no_look_gets_none(session: TargetSession, store: Store, form: str) -> None:
    program = affine_program(store) if form == "native" else model_new(store, COMPUTES_LATER)
    seconds = 20e-6 if form == "native" else EAGER_S
    assert looked_at(session, store, program, program_s=seconds) == (None, "no output was taken")


def test_a_baseline_that_fails_meanwhile_is_no_fault_of_the_program(
    session: TargetSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stitch_tools.judge.timing.seats import Seat

    fetch = Seat.fetch_latest

    def failing(seat: Seat, calls: int) -> float:
        if seat.name == "eager":
            raise ContestantFailedError(seat.name, "gone")
        return fetch(seat, calls)

    monkeypatch.setattr(Seat, "fetch_latest", failing)
    assert looked_at(session, store, model_new(store, COMPUTES_LATER), program_s=20e-6)[0] is None
