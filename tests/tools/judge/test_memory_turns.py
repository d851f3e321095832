"""Memory that runs out beside other processes is no fault of a program: its check is repeated alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stitch_tools.errors import MemoryHeldError
from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.memory_holders import BenchMemory, naming_holders, refuse_held_memory
from stitch_tools.judge.memory_turns import CheckAttempt, check_in_turn, forecast_bytes
from stitch_tools.judge.timing import benchmark_program
from stitch_tools.judge.timing.runners import step_reason
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.device_memory import DeviceMemory, MemoryReading, Waiter
from stitch_tools.models.verdict import Bench, Check, CheckStatus, Timing
from stitch_tools.protocol.free_memory import total_bytes
from stitch_tools.protocol.memory_faults import says_out_of_memory
from stitch_tools.protocol.messages_session import ChildLimits
from stitch_tools.run.reference_server import ReferenceMemoryError, ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import (
    AFFINE_NEW,
    build,
    faulty_program,
    linear_relu_task,
    make_task,
    model_new,
)

GIB = 1 << 30
ALONE = "memory ran out beside other processes: the check is repeated alone"
NO_MEMORY = ReferenceMemoryError("not enough memory")


class TurnSetup:
    """A reference, and memory that is the test's own."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store
        self.task = linear_relu_task(store)
        self.reference = ReferenceServer(session, self.task, store)
        self.facts = self.reference.observe()
        self.said: list[str] = []

    def trial(self, fault: str = "OUT_OF_MEMORY") -> Trial:
        self.said = []
        program = faulty_program(self.store, fault)
        return Trial(
            task=self.task,
            program=program,
            build=build(program, self.store),
            session=self.session,
            store=self.store,
            facts=self.facts,
            reference=self.reference,
            emit=self.said.append,
        )

    def check(self, status: CheckStatus) -> Check:
        trial = self.trial()
        return Check(program_id=trial.program.program_id, task_id=self.task.task_id, status=status)


@pytest.fixture(scope="module")
def setup(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnSetup]:
    setup = TurnSetup(one_thread, Store(tmp_path_factory.mktemp("turns") / "store"))
    with setup.reference:
        yield setup


@pytest.fixture(autouse=True)
def own_lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))


def memory(used_gib: int = 0) -> DeviceMemory:
    return DeviceMemory("cpu", lambda: MemoryReading(80 * GIB, (80 - used_gib) * GIB))


def in_turn(*results: Check | ReferenceMemoryError) -> Callable[[], CheckAttempt]:
    """Attempts with these results, one after another."""
    left = list(results)

    def attempt() -> CheckAttempt:
        result = left.pop(0)
        return CheckAttempt(
            result, isinstance(result, ReferenceMemoryError) or result.status == "out_of_memory"
        )

    return attempt


def test_a_program_that_needs_too_much_alone_is_out_of_memory_at_once(setup: TurnSetup) -> None:
    check = check_program(setup.trial(), memory=memory())
    assert check.status == "out_of_memory", check.message
    assert ALONE not in setup.said


def test_a_program_that_runs_out_of_memory_beside_a_strangers_process_is_not_judged(setup: TurnSetup) -> None:
    check = check_program(setup.trial(), memory=memory(used_gib=70))
    assert check.status == "unmeasured", check.message
    assert "other processes hold 71680 of 81920 MiB" in check.message
    assert check.memory_held
    assert ALONE in setup.said
    # The next program finds a reference that works.
    assert check_program(setup.trial("NONE"), memory=memory(used_gib=70)).status == "accepted"


def test_a_limit_that_the_caller_set_is_no_matter_of_others(setup: TurnSetup) -> None:
    options = CheckOptions(memory_bytes=GIB)
    check = check_program(setup.trial("ALLOCATES"), options, memory(used_gib=70))
    assert check.status == "out_of_memory", check.message
    assert ALONE not in setup.said


def test_what_ran_out_beside_another_job_is_judged_when_that_has_ended(setup: TurnSetup) -> None:
    trial = setup.trial()
    with memory().claim(GIB, Waiter(0.0, "other")):
        attempts = in_turn(setup.check("out_of_memory"), setup.check("accepted"))
        hurried = replace(trial, deadline_s=0.0)
        left_open = check_in_turn(hurried, memory(), attempts, limited=False)
    assert left_open.status == "unmeasured"
    assert "claimed by other jobs" in left_open.message

    other = memory().claim(GIB, Waiter(0.0, "other"))
    other.__enter__()

    def say(sentence: str) -> None:
        if sentence == ALONE:
            other.__exit__(None, None, None)

    for first in (setup.check("out_of_memory"), NO_MEMORY):
        attempts = in_turn(first, setup.check("accepted"))
        check = check_in_turn(replace(trial, emit=say), memory(), attempts, limited=False)
        assert check.status == "accepted"
        other = memory().claim(GIB, Waiter(0.0, "other"))
        other.__enter__()
    other.__exit__(None, None, None)


def test_a_reference_without_memory_is_an_error_that_says_who_holds_it(setup: TurnSetup) -> None:
    with pytest.raises(MemoryHeldError, match="other processes hold 71680 of 81920 MiB"):
        check_in_turn(setup.trial(), memory(70), in_turn(NO_MEMORY, NO_MEMORY), limited=False)
    with pytest.raises(ReferenceMemoryError):
        check_in_turn(setup.trial(), memory(), in_turn(NO_MEMORY), limited=False)


@pytest.mark.parametrize(("used_gib", "held"), [(70, True), (0, False)])
def test_a_program_without_memory_when_it_is_timed_has_failed_only_where_it_had_the_device(
    setup: TurnSetup, used_gib: int, held: bool
) -> None:
    bench = benchmark_program(setup.trial(), memory=memory(used_gib))
    assert (bench.outcome, bench.memory_held, bench.program_failed) == ("unmeasured", held, not held)
    assert ("other processes hold 71680 of 81920 MiB" in bench.message) == held


def bench_of(trial: Trial, message: str = "", *, note: str = "") -> Bench:
    return Bench(
        program_id=trial.program.program_id,
        task_id=trial.task.task_id,
        outcome="unmeasured" if message else "inconclusive",
        message=message,
        program_failed=bool(message),
        timings=(Timing(name="eager", latency_us=None, note=note),),
    )


def test_a_timing_is_left_open_only_where_memory_was_missing_beside_others(setup: TurnSetup) -> None:
    trial = replace(setup.trial(), reference=None)
    without, crashed = (bench_of(trial, f"the program failed: {why}") for why in ("out_of_memory", "SIGSEGV"))
    shared = BenchMemory(trial, memory())
    assert shared.excuse(without) == without
    with memory().claim(GIB, Waiter(0.0, "other")):
        assert "1024 MiB are claimed by other jobs" in shared.excuse(without).message
        assert shared.excuse(crashed) == crashed
        no_eager = shared.excuse(bench_of(trial, note="CUDA out of memory"))
        assert (no_eager.outcome, no_eager.memory_held) == ("unmeasured", True)
    assert shared.excuse(without).memory_held, "the other one may have ended since"
    assert not BenchMemory(trial, memory()).excuse(without).memory_held


def test_a_result_that_is_less_for_want_of_memory_beside_others_is_refused(setup: TurnSetup) -> None:
    missing = "export: OutOfMemoryError: CUDA out of memory"
    with pytest.raises(MemoryHeldError, match=f"{missing} .other processes hold 71680"):
        refuse_held_memory(setup.reference, missing, memory(70))
    refuse_held_memory(setup.reference, missing, memory())
    refuse_held_memory(setup.reference, "export: a branch depends on values", memory(70))
    assert check_program(setup.trial("NONE"), memory=memory()).status == "accepted"


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        ("out_of_memory", "wants more", "forward: wants more: out_of_memory"),
        ("out_of_memory", "", "forward: out_of_memory"),
        ("out_of_memory", "CUDA out of memory", "forward: CUDA out of memory"),
        ("error", "wants more", "forward: wants more"),
    ],
)
def test_a_timing_says_that_memory_was_missing_whatever_the_program_says(
    status: str, message: str, reason: str
) -> None:
    assert step_reason("forward", status, message) == reason
    assert says_out_of_memory(reason) == (status == "out_of_memory")


def test_whoever_holds_memory_is_named_to_a_reference_that_finds_none() -> None:
    with (
        pytest.raises(MemoryHeldError, match="other processes hold 71680"),
        naming_holders("cpu", memory(70)),
    ):
        raise NO_MEMORY
    with pytest.raises(ReferenceMemoryError), naming_holders("cpu", memory()):
        raise NO_MEMORY


def test_a_better_result_alone_replaces_one_with_less_memory(setup: TurnSetup) -> None:
    """An oracle that had no room beside others is no failure, and yet another verdict."""
    weak, strong = setup.check("incorrect"), setup.check("accepted")
    attempts = iter((CheckAttempt(weak, memory_short=True), CheckAttempt(strong, memory_short=False)))
    assert check_in_turn(setup.trial(), memory(70), lambda: next(attempts), limited=False) == strong


def test_the_forecast_grows_with_weights_and_inputs(setup: TurnSetup) -> None:
    small = forecast_bytes(setup.facts, on_gpu=False)
    assert small > sum(row.nbytes for row in (*setup.facts.inputs, *setup.facts.parameters))
    assert forecast_bytes(setup.facts, on_gpu=True) - small >= GIB


HUGE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.zeros({count}).sum() + x

def get_inputs():
    return [torch.randn({inputs})]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("sizes", [{"count": 15 << 30, "inputs": 4}, {"count": 4, "inputs": 15 << 30}])
def test_a_reference_of_60_gib_is_refused_by_name_and_nobody_is_killed(
    setup: TurnSetup, sizes: dict[str, int]
) -> None:
    if total_bytes() > 100 * GIB:
        pytest.skip("this machine has memory for it")
    task = make_task(setup.store, HUGE.format(**sizes))
    with (
        ReferenceServer(setup.session, task, setup.store) as reference,
        pytest.raises(ReferenceMemoryError) as caught,
    ):
        reference.observe(memory())
    assert "reference.py:" in caught.value.message
    assert "use a machine with more" in caught.value.hint
    assert check_program(setup.trial("NONE"), memory=memory()).status == "accepted"


def test_a_reference_that_finds_no_memory_beside_others_is_looked_at_again_alone(setup: TurnSetup) -> None:
    task = make_task(setup.store, HUGE.format(count=1 << 26, inputs=4))
    limits = ChildLimits(memory_bytes=1 << 27)
    with ReferenceServer(setup.session, task, setup.store, limits=limits) as reference:
        first = reference.child
        with pytest.raises(ReferenceMemoryError):
            reference.observe(memory(used_gib=70))
        assert reference.child is not first
        second = reference.child
        with pytest.raises(ReferenceMemoryError):
            reference.observe(memory())
        assert reference.child is second


def test_a_program_that_takes_all_memory_harms_neither_the_judge_nor_the_next_program(
    setup: TurnSetup,
) -> None:
    hog = AFFINE_NEW.replace(
        "    def forward(self, x):\n        return x * 2.0 + 1.0",
        "    def __init__(self, *sizes):\n        super().__init__()\n"
        "    def forward(self, x):\n        return [torch.ones(1 << 26) for _ in range(1 << 20)]",
    )
    trial = replace(setup.trial(), program=model_new(setup.store, hog), build=None)
    check = check_program(trial, CheckOptions(memory_bytes=2 * GIB), memory())
    assert check.status == "out_of_memory", check.message
    assert check_program(setup.trial("NONE"), memory=memory()).status == "accepted"


def test_a_check_needs_no_lock_folder(
    setup: TurnSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path / "file"))
    assert check_program(setup.trial("NONE"), memory=memory()).status == "accepted"
