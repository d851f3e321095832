"""Every way in which a program can be right or wrong ends in its own status, with the reason."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import Build
from stitch_tools.models.task import Contract, ReferenceFacts, Task
from stitch_tools.models.verdict import Check
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import PROGRAMS, build, faulty_program, linear_relu_task, make_task, model_new


class StatusSetup:
    """A warm session with the reference of `linear_relu.cpp` loaded."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store
        self.task = linear_relu_task(store)
        self.reference = ReferenceServer(session, self.task, store)
        self.facts = self.reference.observe()

    def check(self, fault: str, *, task: Task | None = None, options: CheckOptions | None = None) -> Check:
        program = faulty_program(self.store, fault)
        return check_program(
            Trial(
                task=task or self.task,
                program=program,
                build=build(program, self.store),
                session=self.session,
                store=self.store,
                facts=self.facts,
                reference=None if task else self.reference,
            ),
            options,
        )


@pytest.fixture(scope="module")
def setup(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StatusSetup]:
    root = tmp_path_factory.mktemp("check")
    setup = StatusSetup(one_thread, Store(root / "store"))
    with setup.reference:
        yield setup


def test_a_right_program_is_accepted_on_every_draw(setup: StatusSetup) -> None:
    check = setup.check("NONE")
    assert check.status == "accepted", check.message
    assert check.oracle == "fp64"
    assert check.flags == ()
    assert check.sandbox == setup.session.sandbox_level
    assert [draw.draw for draw in check.draws] == [
        "own-1", "own-2", "own-3", "own-3 repeated", "altered", "signed", "negative", "scaled",
        "outliers", "peaks", "amplified", "spikes", "towers", "constants", "zeros", "near-constant",
        "batch-probe", "batch-larger", "batch-1", "own-1 again",
        "weights-2/own-4", "weights-2/scaled", "order-1/own-6",
    ]  # fmt: skip
    assert all(draw.ok for draw in check.draws)
    for draw in check.draws:
        for row in draw.outputs:
            assert row.max_error is not None
            assert row.bound is not None
            assert row.max_error <= row.bound < 1e-4


@pytest.mark.parametrize(
    ("fault", "draw", "words"),
    [
        ("WRONG_SHAPE", "own-1", "gives float32[8, 34], expected float32[8, 33]"),
        ("WRONG_DTYPE", "own-1", "gives float64[8, 33], expected float32[8, 33]"),
        ("TOO_FEW_OUTPUTS", "own-1", "gives no outputs"),
        ("NOT_A_NUMBER", "own-1", "1 of 264 values are NaN where the reference has a number at [4, 0]"),
        ("TAIL", "own-1", "at [7, 32]: expected"),
        ("NOTHING", "own-1", "was never written"),
        ("TOLERANCE", "own-1", "is above the bound"),
        ("SMALL_ROWS", "own-1", "is above the bound"),
        ("MODIFIES_INPUT", "own-1", "the program modified its inputs"),
        ("OVERRUN", "own-1", "memory beside the outputs was overwritten"),
        ("NO_RELU", "own-1", "is above the bound"),
        ("OLD_WEIGHTS", "weights-2/own-4", "is above the bound"),
        ("PLAN_REFUSES", "own-1", "refuses the inputs: one matrix is wanted"),
    ],
)
def test_wrong_results_are_incorrect_with_draw_and_reason(
    setup: StatusSetup, fault: str, draw: str, words: str
) -> None:
    check = setup.check(fault)
    assert check.status == "incorrect", check.message
    # What is off by as much as products in a coarser format is told so first.
    assert f"draw {draw}: " in check.message
    assert words in check.message
    failed = [row for row in check.draws if not row.ok]
    assert failed[0].draw == draw


@pytest.mark.parametrize(
    ("fault", "draw", "rule", "words"),
    [
        ("CACHED_FIRST", "own-2", "cached_results", "these are the results of an earlier call"),
        ("CACHED_BY_ADDRESS", "own-2", "cached_results", "these are the results of an earlier call"),
    ],
)
def test_stale_results_are_fatal(setup: StatusSetup, fault: str, draw: str, rule: str, words: str) -> None:
    check = setup.check(fault)
    assert check.status == "rejected_cheat", check.message
    assert check.message.startswith(f"draw {draw}: ")
    assert words in check.message
    assert {row.rule for row in check.findings if row.severity == "fatal"} == {rule}


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("CRASH", "crashed", "SIGSEGV, in draw own-1, inside stitch_forward"),
        ("ABORT", "crashed", "SIGABRT"),
        ("EXIT", "crashed", "code 0 before it had answered"),
        ("FLOODS", "crashed", "printed more than it may"),
        ("FAILS", "crashed", "stitch_forward: no luck today"),
        ("INIT_FAILS", "crashed", "stitch_init: weights are of the wrong colour"),
        ("OUT_OF_MEMORY", "out_of_memory", "stitch_forward: wants more"),
        ("ABI_VERSION", "build_failed", "built for ABI 99"),
    ],
)
def test_a_program_that_does_not_survive_has_its_own_status(
    setup: StatusSetup, fault: str, status: str, words: str
) -> None:
    check = setup.check(fault)
    assert check.status == status, check.message
    assert words in check.message


def test_an_endless_loop_is_timed_out_and_the_next_check_is_clean(setup: StatusSetup) -> None:
    check = setup.check("HANG", options=CheckOptions(call_timeout_s=1.0))
    assert check.status == "timed_out", check.message
    assert setup.check("NONE").status == "accepted"


def test_memory_beyond_the_limit_is_out_of_memory(setup: StatusSetup) -> None:
    check = setup.check("ALLOCATES", options=CheckOptions(memory_bytes=1 << 30))
    assert check.status == "out_of_memory", check.message


def test_what_a_program_prints_does_not_reach_the_verdict(setup: StatusSetup) -> None:
    assert setup.check("PRINTS").status == "accepted"


def test_a_program_that_refuses_another_leading_size_is_specialized(setup: StatusSetup) -> None:
    check = setup.check("FIXED_BATCH")
    assert check.status == "accepted"
    assert check.flags == ("specialized",)
    assert any("made for 8 rows" in reason for reason in check.not_checked)


def test_wrong_results_at_another_size_alone_leave_a_program_accepted_and_unguarded(
    setup: StatusSetup,
) -> None:
    check = setup.check("WRONG_PROBE")
    assert check.status == "accepted", check.message
    assert check.flags == ("unguarded",)


def test_a_fixed_shape_policy_makes_no_batch_probe(setup: StatusSetup) -> None:
    task = linear_relu_task(setup.store, contract=Contract(shape_policy="fixed"))
    check = setup.check("FIXED_BATCH", task=task)
    assert check.status == "accepted"
    assert check.flags == ()


def test_a_relaxed_contract_marks_the_result(setup: StatusSetup) -> None:
    task = linear_relu_task(setup.store, contract=Contract(relaxed=True))
    assert setup.check("NONE", task=task).flags == ("relaxed",)


def test_a_failed_build_names_the_first_error(setup: StatusSetup) -> None:
    program = faulty_program(setup.store, "NO_SUCH_FAULT")
    check = check_program(
        Trial(
            task=setup.task,
            program=program,
            build=build(program, setup.store),
            session=setup.session,
            store=setup.store,
            facts=setup.facts,
        )
    )
    assert check.status == "build_failed"
    assert "NO_SUCH_FAULT" in check.message
    assert check.sandbox is None


def test_a_native_program_for_a_random_reference_is_unmeasured(setup: StatusSetup) -> None:
    program = faulty_program(setup.store, "NONE")
    built: Build = build(program, setup.store)
    facts: ReferenceFacts = setup.facts.model_copy(update={"uses_rng": True})
    check = check_program(
        Trial(
            task=setup.task,
            program=program,
            build=built,
            session=setup.session,
            store=setup.store,
            facts=facts,
        )
    )
    assert check.status == "unmeasured"
    assert check.flags == ("unsupported_rng",)


def test_a_task_for_a_device_that_is_not_here_is_unmeasured(setup: StatusSetup, tmp_path: Path) -> None:
    task = linear_relu_task(setup.store, target="cuda:sm_90")
    check = setup.check("NONE", task=task)
    assert check.status == "unmeasured"
    assert "no CUDA device" in check.message


def test_time_that_is_over_is_named_and_not_hidden(setup: StatusSetup) -> None:
    program = faulty_program(setup.store, "NONE")
    check = check_program(
        Trial(
            task=setup.task,
            program=program,
            build=build(program, setup.store),
            session=setup.session,
            store=setup.store,
            facts=setup.facts,
            reference=setup.reference,
            deadline_s=0.0,
        )
    )
    assert (check.status, check.flags) == ("accepted", ("incomplete",))
    assert len(check.draws) == 1
    over = [line for line in check.not_checked if line.endswith(": the time for the check was over")]
    late = [line for line in over if line.startswith("draw ")]
    assert late[0].startswith("draw own-2")
    assert any(line.startswith("draw weights-2/") for line in late)
    assert f"{len(late)} of {len(late) + 1} draws were not made" in check.message


def test_a_python_program_that_was_cut_off_says_that_its_share_was_not_weighed(setup: StatusSetup) -> None:
    source = (
        (PROGRAMS / "linear_relu.py").read_text(encoding="utf-8").replace("class Model(", "class ModelNew(")
    )
    check = check_program(
        Trial(
            task=setup.task,
            program=model_new(setup.store, source),
            build=None,
            session=setup.session,
            store=setup.store,
            facts=setup.facts,
            reference=setup.reference,
            deadline_s=0.0,
        )
    )
    assert (check.status, check.flags) == ("accepted", ("incomplete",))
    assert "who did the work: the time for the check was over" in check.not_checked


def test_an_input_maker_that_takes_long_ends_with_the_time_of_the_check(setup: StatusSetup) -> None:
    """As one of a minute does with an hour: what was drawn in time is judged, and the rest named."""
    source = (PROGRAMS / "linear_relu.py").read_text(encoding="utf-8")
    slow = source.replace("    return [torch.", "    __import__('time').sleep(1.0)\n    return [torch.")
    assert slow != source
    task = make_task(setup.store, slow)
    with ReferenceServer(setup.session, task, setup.store) as reference:
        program = faulty_program(setup.store, "NONE")
        check = check_program(
            Trial(
                task=task,
                program=program,
                build=build(program, setup.store),
                session=setup.session,
                store=setup.store,
                facts=reference.observe(),
                reference=reference,
                deadline_s=time.monotonic() + 3.0,
            )
        )
    assert (check.status, check.flags) == ("accepted", ("incomplete",)), check.message
    assert 1 <= len(check.draws) < 8
    assert (check.wall_s or 0.0) < 30.0
