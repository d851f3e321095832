"""Programs that are quick only on inputs that came before are told from those that are quick.

What takes time here are pauses of milliseconds, so that a busy machine changes little about the ratios.
"""

import mmap
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from stitch_tools.judge.timing.output_check import OutputCheck
from stitch_tools.judge.timing.probes import ProbeReport
from stitch_tools.judge.timing.probes.fresh_inputs import (
    SHAPES_VARY,
    FreshInputs,
    best_of_two,
    copy_memory,
    quickest_on_late,
    quickest_on_new,
    try_late_inputs,
    try_new_inputs,
)
from stitch_tools.judge.timing.program_runners import RingPlan, load_program, start_ring
from stitch_tools.judge.timing.ring import RingShape
from stitch_tools.judge.timing.setup import Setup, make_draws
from stitch_tools.models.conditions import TimingDoubt
from stitch_tools.models.program import Program
from stitch_tools.protocol import memory
from stitch_tools.run.reference_server import Comparison, Expectation, ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import AFFINE_NEW, affine_program, build, make_task, model_new
from tests.tools.timing_support import probe_context, rounds_of

REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2.0 + 1.0

def get_inputs():
    return [torch.randn(16, 64)]

def get_init_inputs():
    return []
"""
TABLE_BY_VALUE = """
import time, torch

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.prepared = set()

    def forward(self, x):
        key = float(x.sum())
        if key not in self.prepared:
            time.sleep(0.01)
            self.prepared.add(key)
        return x * 2.0 + 1.0
"""
MET_EARLY = """
import os, time, torch

plain, tables = os.read, {}

def look_up(x):
    seen, result = tables.get(id(x), (None, None))[1:] if id(x) in tables else (None, None)
    if seen is None or not torch.equal(seen, x):
        time.sleep(0.01)
        result = x * 2.0 + 1.0
        tables[id(x)] = x, x.clone(), result
    return result

def read(fd, count):
    data = plain(fd, count)
    if data == bytes(8):  # an empty batch: are there other values in memory that it knows?
        with torch.inference_mode():
            for x, _, _ in list(tables.values()):
                look_up(x)
    return data

os.read = read

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return look_up(x).clone()
"""
CALLS_SEEN = """
calls = 0

def seen(x):
    global calls
    calls += 1
    return calls <= 140
"""
PREPARES_FOR_ADDRESSES = """
import collections, time, torch

calls = collections.Counter()

class ModelNew(torch.nn.Module):
    def forward(self, x):
        calls[x.data_ptr()] += 1
        if calls[x.data_ptr()] == 2:  # as a capture of a CUDA graph does
            time.sleep(0.01)
        return x * 2.0 + 1.0
"""
SEEDS = (11, 12)
SLOTS = 64


class CountingServer(ReferenceServer):
    """A reference server that counts the outputs that it is given, and may leave a part of each undecided."""

    compared = 0
    undecided: str | None = None

    def compare(self, outputs_fd: int, expectation: Expectation, generator_after: bytes = b"") -> Comparison:
        self.compared += 1
        found = super().compare(outputs_fd, expectation, generator_after)
        rows = tuple(row.model_copy(update={"undecided": self.undecided}) for row in found.outputs)
        return replace(found, outputs=rows)


@dataclass
class FreshInputsSetup:
    """A warm session with one task."""

    session: TargetSession
    store: Store

    def look(
        self,
        program: Program,
        per_call_s: float | None = None,
        undecided: str | None = None,
        reference: str = REFERENCE,
    ) -> tuple[ProbeReport, ProbeReport, int]:
        """What new inputs show, what late ones show, and how many outputs of the former were compared.

        The program is called two times around its ring, the second time as under the clock, unless
        `per_call_s` says what it took there.
        """
        task = make_task(self.store, reference)
        with ExitStack() as stack:
            judge = stack.enter_context(CountingServer(self.session, task, self.store))
            judge.undecided = undecided
            facts = judge.observe()
            shape = RingShape(SLOTS, len(SEEDS), SLOTS * 8192)
            cache = self.store.root.parent / "cache"
            setup = Setup(self.session, task, self.store, facts, shape, SEEDS, cache, judge)
            weights, draws = make_draws(stack, judge, SEEDS)
            built = build(program, self.store) if program.format == "native" else None
            loaded = load_program(stack, setup, program, built, weights)
            runner = start_ring(stack, setup, loaded, RingPlan(SLOTS, draws, samples=1))
            runner.run_calls(SLOTS)
            timed_s = runner.run_calls(SLOTS) / SLOTS
            runner.finish()
            rounds = rounds_of({"program": timed_s if per_call_s is None else per_call_s})
            context = probe_context(setup, loaded, runner, draws, rounds)
            new, compared = try_new_inputs(context), judge.compared
            return new, try_late_inputs(context), compared


@pytest.fixture(scope="module")
def timing_setup(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> FreshInputsSetup:
    root = tmp_path_factory.mktemp("unseen")
    return FreshInputsSetup(one_thread, Store(root / "store"))


def wrong(report: ProbeReport) -> str:
    """What the report says of the outputs that it compared."""
    (check,) = report.outputs
    return check.wrong


def is_right_and_quick(report: ProbeReport) -> bool:
    """Whether outputs were compared, all of them were right, and nothing is in doubt."""
    (check,) = report.outputs
    return check == OutputCheck(compared=check.compared) and check.compared > 0 and not report.doubts


def test_a_program_that_keeps_its_results_by_value_is_slow_on_new_inputs(
    timing_setup: FreshInputsSetup,
) -> None:
    new, _, _ = timing_setup.look(affine_program(timing_setup.store, "KEEPS_BY_VALUE", "SLEEP_MS 5"))
    assert not wrong(new)
    assert [doubt.rule for doubt in new.doubts] == ["slow_on_new_inputs"]


def test_a_python_program_that_prepares_for_values_is_slow_on_new_inputs(
    timing_setup: FreshInputsSetup,
) -> None:
    new, _, _ = timing_setup.look(model_new(timing_setup.store, TABLE_BY_VALUE))
    assert not wrong(new)
    assert [doubt.rule for doubt in new.doubts] == ["slow_on_new_inputs"]


def test_a_program_may_prepare_for_addresses_that_come_again(timing_setup: FreshInputsSetup) -> None:
    program = model_new(timing_setup.store, PREPARES_FOR_ADDRESSES)
    new, _, _ = timing_setup.look(program, per_call_s=1e-3)
    assert is_right_and_quick(new)


@pytest.mark.parametrize("form", ["native", "python"])
def test_an_honest_program_is_right_and_as_quick_on_new_inputs(
    timing_setup: FreshInputsSetup, form: str
) -> None:
    paused = AFFINE_NEW.replace("return", "import time; time.sleep(0.005); return")
    program = (
        affine_program(timing_setup.store, "SLEEP_MS 5")
        if form == "native"
        else model_new(timing_setup.store, paused)
    )
    new, _, _ = timing_setup.look(program)
    assert is_right_and_quick(new)


def test_a_quick_program_on_many_new_inputs_has_few_of_its_outputs_compared(
    timing_setup: FreshInputsSetup,
) -> None:
    new, _, compared = timing_setup.look(model_new(timing_setup.store, AFFINE_NEW), per_call_s=1e-3)
    assert not wrong(new)
    assert compared == 5


@pytest.mark.parametrize("variant", ["LAZY_AFTER", "WRONG_AFTER"])
def test_a_program_that_computes_known_inputs_only_is_wrong_on_new_ones(
    timing_setup: FreshInputsSetup, variant: str
) -> None:
    """It works twice around the ring, and once around the small one, which has 20 slots for calls of 5 ms."""
    new, _, _ = timing_setup.look(
        affine_program(timing_setup.store, f"{variant} {2 * SLOTS + 20}"), per_call_s=5e-3
    )
    assert wrong(new)


def test_a_timed_output_that_is_undecided_in_part_is_named(timing_setup: FreshInputsSetup) -> None:
    new, _, compared = timing_setup.look(
        model_new(timing_setup.store, AFFINE_NEW), per_call_s=1e-3, undecided="3 of 1024 values: rounding"
    )
    assert compared == 5
    assert new.outputs == (OutputCheck("", "output 0: 3 of 1024 values: rounding", compared=5),)


def test_a_program_that_computes_as_soon_as_new_inputs_are_there_is_slow_on_those_that_come_late(
    timing_setup: FreshInputsSetup,
) -> None:
    new, late, _ = timing_setup.look(model_new(timing_setup.store, MET_EARLY))
    assert is_right_and_quick(new)
    assert not wrong(late)
    assert [doubt.rule for doubt in late.doubts] == ["slow_on_late_inputs"]


@pytest.mark.parametrize("form", ["native", "python"])
@pytest.mark.parametrize("pause_ms", [0, 5])
def test_an_honest_program_is_as_quick_on_late_inputs(
    timing_setup: FreshInputsSetup, form: str, pause_ms: int
) -> None:
    slow = AFFINE_NEW.replace("return", f"import time; time.sleep({pause_ms / 1000}); return")
    native = affine_program(timing_setup.store, *([f"SLEEP_MS {pause_ms}"] if pause_ms else []))
    _, late, _ = timing_setup.look(native if form == "native" else model_new(timing_setup.store, slow))
    assert is_right_and_quick(late)


class Drowsy:
    """A GPU whose calls take three times as long once it has idled while outputs were fetched."""

    def __init__(self) -> None:
        self.idled = True

    def run_calls(self, calls: int) -> float:
        waking_s = 80e-6 if self.idled and calls else 0.0
        self.idled = self.idled and not calls
        return 10e-6 + calls * 40e-6 + waking_s

    def take_one(self, calls: int) -> None:
        assert calls
        self.idled = True


@pytest.mark.parametrize(("waking", "expected_us"), [(0, 120.0), (1, 40.0)])
def test_a_gpu_is_woken_before_new_inputs_are_timed(waking: int, expected_us: float) -> None:
    runner: Any = Drowsy()
    assert quickest_on_new(runner, 1, 4, waking, None) * 1e6 == pytest.approx(expected_us)


def test_inputs_whose_shapes_vary_do_not_fit_and_fail_no_program() -> None:
    def draw(size: int) -> Any:
        return SimpleNamespace(manifest=[{"name": "0", "shape": [size]}], close=lambda: None)

    sizes = iter(range(10, 1000))
    judge: Any = SimpleNamespace(make_draw=lambda kind, seed: draw(next(sizes)))
    setup: Any = SimpleNamespace(
        shape=RingShape(SLOTS, 2, SLOTS * 64), slot_bytes=64, cuda=False, judge=judge
    )
    context: Any = SimpleNamespace(
        setup=setup, draws=[draw(3), draw(4)], throughput_s=1e-3, latency_s=1e-3, others_disturb=False
    )
    assert try_new_inputs(context) == ProbeReport(not_checked=(SHAPES_VARY,))
    assert try_late_inputs(context) == ProbeReport()
    context.program = SimpleNamespace(child=object(), sampler=object())
    assert FreshInputs().look(context) == ProbeReport(not_checked=(SHAPES_VARY,))


def test_sealed_draws_are_never_mapped_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux before 6.7 refuses that, for reading, too."""
    real = mmap.mmap

    def older(*args: Any, **kwargs: Any) -> mmap.mmap:
        if kwargs.get("flags", mmap.MAP_SHARED) & mmap.MAP_SHARED:
            raise PermissionError("sealed")
        return real(*args, **kwargs)

    fds = [memory.create(4096, sealable=number == 0) for number in range(2)]
    try:
        os.pwrite(fds[0], b"values", 100)
        memory.seal(fds[0])
        monkeypatch.setattr(mmap, "mmap", older)
        copy_memory(fds[1], fds[0])
        assert os.pread(fds[1], 8, 100) == b"values\0\0"
    finally:
        for fd in fds:
            os.close(fd)


SLOW = ProbeReport((TimingDoubt(rule="slow_on_new_inputs", observed=9.0, expected=1.0),))
SLOW_STILL = ProbeReport((TimingDoubt(rule="slow_on_new_inputs", observed=8.0, expected=1.0),))
WRONG = ProbeReport(outputs=(OutputCheck("gave other values"),))


@pytest.mark.parametrize(
    ("attempts", "shown"),
    [
        ([ProbeReport()], ProbeReport()),
        ([SLOW, ProbeReport()], ProbeReport()),
        ([SLOW, SLOW_STILL], SLOW_STILL),
        ([SLOW, WRONG], WRONG),
        ([replace(SLOW, outputs=WRONG.outputs)], replace(SLOW, outputs=WRONG.outputs)),
    ],
)
def test_one_busy_moment_raises_no_doubt_but_a_wrong_result_is_never_forgotten(
    attempts: list[ProbeReport], shown: ProbeReport
) -> None:
    left = iter(attempts)
    assert best_of_two(lambda: next(left)) == shown
    assert next(left, None) is None


class Sleeper:
    """A runner whose process takes long to be woken, and may wait in empty gos."""

    def __init__(self, woken_s: float, call_s: float, wait_s: float) -> None:
        self.woken_s, self._call_s, self._wait_s = woken_s, call_s, wait_s

    def wake_and_run_calls(self, calls: int) -> float:
        return self.woken_s + 1e-4 + (calls * self._call_s if calls else self._wait_s)

    def run_calls(self, calls: int) -> float:
        return calls * self._call_s

    def halt(self) -> None: ...

    def take_one(self, calls: int) -> None: ...


@pytest.mark.parametrize("woken_s", [1e-4, 4e-3])
def test_a_machine_that_wakes_slowly_is_no_work(woken_s: float) -> None:
    fds = [memory.create(4096) for _ in range(2)]

    def quickest(wait_s: float, call_s: float) -> float:
        runner: Any = Sleeper(woken_s, call_s, wait_s)
        known, new = fds
        return quickest_on_late(runner, [(known, new)] * 30, 10, 1e-4)

    assert quickest(0.0, 50e-6) == pytest.approx(50e-6)
    # An empty batch in which a program waits is taken off up to a millisecond beyond a baseline's.
    assert quickest(8e-3, 1e-3) == pytest.approx(0.9e-3)
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("variant", ["LAZY_AFTER", "WRONG_AFTER"])
def test_outputs_of_late_inputs_are_compared(timing_setup: FreshInputsSetup, variant: str) -> None:
    """Beyond twice the ring, twice the small one of 20 slots and once that of 12, all outputs are wrong."""
    _, late, _ = timing_setup.look(
        affine_program(timing_setup.store, f"{variant} {2 * SLOTS + 52}"), per_call_s=5e-3
    )
    assert wrong(late)


@pytest.mark.parametrize(
    "line", ["x.mul_(2.0).add_(1.0)", "x.mul_(1.0).mul_(2.0).add_(1.0) if seen(x) else x"]
)
def test_inputs_that_each_call_changes_hide_no_output_of_a_call_on_new_ones(
    timing_setup: FreshInputsSetup, line: str
) -> None:
    reference = REFERENCE.replace("x * 2.0 + 1.0", "x.mul_(2.0).add_(1.0).clone()")
    program = AFFINE_NEW.replace("x * 2.0 + 1.0", f"({line}).clone()") + CALLS_SEEN
    new, late, _ = timing_setup.look(
        model_new(timing_setup.store, program), per_call_s=1e-3, reference=reference
    )
    for report in (new, late):
        (check,) = report.outputs
        assert check.not_compared == ""
        assert bool(check.wrong) == ("seen" in line)
