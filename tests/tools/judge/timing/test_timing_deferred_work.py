"""What a program saves by the clock it must save where all its outputs are fetched, too.

What takes time here are pauses of milliseconds, so that a busy machine changes little.
"""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from stitch_tools.judge.timing.baseline_runners import start_baseline
from stitch_tools.judge.timing.output_check import OutputCheck, check_outputs
from stitch_tools.judge.timing.probes import ProbeReport
from stitch_tools.judge.timing.probes.deferred_work import DeferredWork
from stitch_tools.judge.timing.program_runners import RingPlan, load_program, start_ring
from stitch_tools.judge.timing.ring import RingShape
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.setup import Setup, make_draws
from stitch_tools.judge.timing.timed_process import RunnerFailedError
from stitch_tools.models.program import Program
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import AFFINE, AFFINE_NEW, affine_program, build, make_task, model_new
from tests.tools.timing_support import probe_context, rounds_of

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
def session(one_thread: TargetSession) -> TargetSession:
    return one_thread


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
    make_baseline: Callable[[Runner], Runner] = lambda runner: runner,
) -> tuple[ProbeReport, OutputCheck | None]:
    """The report on a program whose calls take `program_s` by the clock, and on outputs that were taken."""
    with ExitStack() as stack:
        task = make_task(store, reference)
        judge = stack.enter_context(ReferenceServer(session, task, store))
        shape = RingShape(SLOTS, len(SEEDS), SLOTS << 17)
        cache = store.root.parent / "cache"
        setup = Setup(session, task, store, judge.observe(), shape, SEEDS, cache, judge)
        weights, draws = make_draws(stack, judge, SEEDS)
        built = build(program, store) if program.format == "native" else None
        loaded = load_program(stack, setup, program, built, weights)
        runner = start_ring(stack, setup, loaded, RingPlan(SLOTS, draws, samples=3))
        eager = make_baseline(start_baseline(stack, setup, "eager"))
        for each in (runner, eager):
            each.pause()
        rounds = rounds_of({"program": program_s, "eager": EAGER_S})
        report = DeferredWork().look(probe_context(setup, loaded, runner, draws, rounds, [eager]))
        sampler = runner.sampler
        if sampler is None or sampler.live or not sampler.samples:
            return report, None
        return report, check_outputs(setup, runner)


def test_a_program_that_saves_what_the_clock_says_is_not_doubted(
    session: TargetSession, store: Store
) -> None:
    report, check = looked_at(session, store, model_new(store, AFFINE_NEW), program_s=20e-6)
    assert report == ProbeReport()
    assert check is not None
    assert not check.wrong


def test_outputs_of_several_kinds_are_fetched(session: TargetSession, store: Store) -> None:
    reference = SLOW.replace("return x * 2.0 + 1.0", TUPLE)
    program = model_new(store, AFFINE_NEW.replace("return x * 2.0 + 1.0", TUPLE))
    report, check = looked_at(session, store, program, program_s=20e-6, reference=reference)
    assert report == ProbeReport()
    assert check is not None
    assert not check.wrong


def test_work_that_is_done_when_outputs_are_fetched_is_no_gain(session: TargetSession, store: Store) -> None:
    report, check = looked_at(session, store, model_new(store, COMPUTES_LATER), program_s=20e-6)
    (doubt,) = report.doubts
    assert (doubt.rule, doubt.baseline, doubt.expected) == ("deferred_work", "eager", pytest.approx(4980.0))
    assert doubt.observed < 0.5 * doubt.expected
    assert check is not None
    assert not check.wrong


def test_outputs_that_nobody_computed_are_wrong(session: TargetSession, store: Store) -> None:
    _, check = looked_at(session, store, model_new(store, NEVER_COMPUTES), program_s=20e-6)
    assert check is not None
    assert check.wrong


@pytest.mark.parametrize("form", ["native", "no gain"])
def test_what_needs_no_look_gets_none(session: TargetSession, store: Store, form: str) -> None:
    program = affine_program(store) if form == "native" else model_new(store, COMPUTES_LATER)
    seconds = 20e-6 if form == "native" else EAGER_S
    assert looked_at(session, store, program, program_s=seconds) == (ProbeReport(), None)


class LosesOutputs(Runner):
    """A baseline that fails when its outputs are fetched."""

    def fetch_latest(self, calls: int) -> float:
        raise RunnerFailedError(self.name, "gone")


def test_a_baseline_that_fails_meanwhile_is_no_fault_of_the_program(
    session: TargetSession, store: Store
) -> None:
    def losing(runner: Runner) -> Runner:
        return LosesOutputs(
            runner.name, runner.pipes, runner.slots, child=runner.child, request=runner.request
        )

    program = model_new(store, COMPUTES_LATER)
    report, _ = looked_at(session, store, program, program_s=20e-6, make_baseline=losing)
    assert report == ProbeReport()
