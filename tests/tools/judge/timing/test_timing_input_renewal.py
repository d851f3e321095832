"""Single calls get inputs that never came before, which the reference repeats; known ones are no quicker.

What takes time here are pauses of milliseconds, so that a busy machine changes little.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import pytest

from stitch_tools.judge.timing.baseline_runners import start_baseline
from stitch_tools.judge.timing.input_renewal import with_renewed_inputs
from stitch_tools.judge.timing.output_check import check_outputs
from stitch_tools.judge.timing.probes.remembered_inputs import remembered_inputs
from stitch_tools.judge.timing.ring import RingShape
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.setup import Setup, make_draws
from stitch_tools.judge.timing.timed_process import RunnerFailedError
from stitch_tools.models.program import Program
from stitch_tools.protocol.ring_messages import REQUEST, donor_of, is_request, parts, request, stretch
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import (
    AFFINE,
    AFFINE_NEW,
    affine_program,
    build,
    make_task,
    model_new,
)
from tests.tools.timing_support import start_program

SEEDS = (11, 12, 13)
SLOTS = 8
KEPT_BY_ADDRESS = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.known = {}

    def forward(self, x):
        if x.data_ptr() not in self.known:
            self.known[x.data_ptr()] = x * 2.0 + 1.0
        return self.known[x.data_ptr()]
"""
KEPT_BY_VALUE = """
import time, torch

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.known = set()

    def forward(self, x):
        key = float(x.double().sum())
        if key not in self.known:
            time.sleep(0.02)
            self.known.add(key)
        return x * 2.0 + 1.0
"""
IN_PLACE = AFFINE.replace("x * 2.0 + 1.0", "x.mul_(2.0) + 1.0")
INTEGERS = AFFINE.replace("torch.randn(64, 256)", "torch.randint(9, (64, 256))").replace("2.0 + 1.0", "2 + 1")
CONSTANT = AFFINE.replace("torch.randn", "torch.ones")


@dataclass
class InputRenewalSetup:
    """A warm session."""

    session: TargetSession
    store: Store

    def setup(self, stack: ExitStack, reference: str = AFFINE) -> Setup:
        """A setup with renewed inputs."""
        task = make_task(self.store, reference)
        judge = stack.enter_context(ReferenceServer(self.session, task, self.store))
        shape = RingShape(SLOTS, len(SEEDS), SLOTS << 17)
        cache = self.store.root.parent / "cache"
        facts = judge.observe()
        return Setup(self.session, task, self.store, facts, shape, SEEDS, cache, judge, renews_inputs=True)

    @contextmanager
    def started(self, program: Program) -> Generator[tuple[Runner, Setup]]:
        """The program under the clock."""
        with ExitStack() as stack:
            setup = self.setup(stack)
            weights, draws = make_draws(stack, setup.judge, SEEDS)
            built = build(program, self.store) if program.format == "native" else None
            runner = start_program(stack, setup, program, built, weights=weights, draws=draws, samples=3)
            yield runner, setup


@pytest.fixture(scope="module")
def timing_setup(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> InputRenewalSetup:
    root = tmp_path_factory.mktemp("renewal")
    return InputRenewalSetup(one_thread, Store(root / "store"))


def test_a_request_is_no_count_and_says_what_it_is_for() -> None:
    word = request(2, 12345)
    assert (is_request(word), parts(word)) == (True, (2, 12345))
    assert not any(map(is_request, (0, 1, REQUEST - 1, 2**64 - 1)))


def test_a_stretch_lies_within_the_tensor_and_comes_from_another_draw() -> None:
    for token in range(1, 200):
        for size in (1, 3, 1000, 10**7):
            begin, end = stretch(token, 0, size)
            assert 0 <= begin < end <= size
            assert end - begin <= max(1, -(-size // 4))
        assert all(donor_of(slot, token, 3) != slot % 3 for slot in range(7))


@pytest.mark.parametrize("form", ["native", "python"])
def test_outputs_of_renewed_inputs_are_those_that_the_reference_gives(
    timing_setup: InputRenewalSetup, form: str
) -> None:
    program = (
        affine_program(timing_setup.store) if form == "native" else model_new(timing_setup.store, AFFINE_NEW)
    )
    with timing_setup.started(program) as (runner, setup):
        for calls in (1, 3, 1, SLOTS, 1, 1):
            runner.renew()
            runner.run_calls(calls)
            runner.take_one(calls)
        runner.finish()
        samples = runner.sampler.samples if runner.sampler is not None else []
        assert len({sample.outputs for sample in samples}) > 1
        assert any(sample.token for sample in samples)
        check = check_outputs(setup, runner)
        assert (check.wrong, check.not_compared, check.compared) == ("", "", len(samples))


def test_results_that_are_kept_by_address_are_wrong_for_renewed_inputs(
    timing_setup: InputRenewalSetup,
) -> None:
    with timing_setup.started(model_new(timing_setup.store, KEPT_BY_ADDRESS)) as (runner, setup):
        runner.run_calls(SLOTS)
        runner.renew()
        runner.run_calls(1)
        runner.take_one(1)
        wrong = check_outputs(setup, runner).wrong
    assert wrong


@pytest.mark.parametrize("form", ["native", "python"])
def test_results_that_are_kept_by_value_make_known_inputs_quicker(
    timing_setup: InputRenewalSetup, form: str
) -> None:
    keeps = affine_program(timing_setup.store, "KEEPS_BY_VALUE", "SLEEP_MS 20")
    with timing_setup.started(
        keeps if form == "native" else model_new(timing_setup.store, KEPT_BY_VALUE)
    ) as (runner, _):
        doubt = remembered_inputs(runner, per_call_s=0.1)
    assert doubt is not None
    assert doubt.rule == "remembered_inputs"
    assert doubt.observed > 1.05 * doubt.expected


@pytest.mark.parametrize("form", ["native", "python"])
def test_an_honest_program_is_as_quick_on_new_inputs_as_on_known_ones(
    timing_setup: InputRenewalSetup, form: str
) -> None:
    paused = AFFINE_NEW.replace("return", "import time; time.sleep(0.002); return")
    program = (
        affine_program(timing_setup.store, "SLEEP_MS 2")
        if form == "native"
        else model_new(timing_setup.store, paused)
    )
    with timing_setup.started(program) as (runner, _):
        assert remembered_inputs(runner, per_call_s=0.1) is None


def test_a_baseline_is_given_renewed_inputs_too(timing_setup: InputRenewalSetup) -> None:
    with ExitStack() as stack:
        setup = timing_setup.setup(stack)
        runner = start_baseline(stack, setup, "eager")
        for _ in range(2 * SLOTS):
            runner.renew()
            assert runner.run_calls(1) > 0.0
        runner.finish()
    assert set(runner.tokens) == set(range(SLOTS))


def test_a_request_that_cannot_be_served_is_a_failure(timing_setup: InputRenewalSetup) -> None:
    with (
        timing_setup.started(affine_program(timing_setup.store)) as (runner, _),
        pytest.raises(RunnerFailedError, match="asked for between calls"),
    ):
        runner.ask(request(9, 0))


@pytest.mark.parametrize(
    ("reference", "words"),
    [(AFFINE, ""), (IN_PLACE, "writes to them"), (INTEGERS, "no floating"), (CONSTANT, "no floating")],
)
def test_inputs_are_renewed_where_the_reference_can_repeat_it(
    timing_setup: InputRenewalSetup, reference: str, words: str
) -> None:
    with ExitStack() as stack:
        setup = timing_setup.setup(stack, reference)
        _, draws = make_draws(stack, setup.judge, SEEDS)
        found = with_renewed_inputs(replace(setup, renews_inputs=False), draws)
    assert found.renews_inputs == (not words)
    assert words in found.not_renewed
