"""Every way in which a program can be right or wrong ends in its own status, with the reason."""

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
from tests.tools.check_support import PROGRAMS, build, faulty_program, linear_relu_task, model_new


class ServerContext:
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
def room(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerContext]:
    root = tmp_path_factory.mktemp("check")
    room = ServerContext(one_thread, Store(root / "store"))
    with room.reference:
        yield room


def test_a_right_program_is_accepted_on_every_draw(room: ServerContext) -> None:
    check = room.check("NONE")
    assert check.status == "accepted", check.message
    assert check.oracle == "fp64"
    assert check.flags == ()
    assert check.sandbox == room.session.sandbox_level
    assert [draw.draw for draw in check.draws] == [
        "own-1", "own-2", "own-3", "own-3 repeated", "altered", "signed", "scaled", "outliers", "peaks",
        "amplified", "spikes", "towers", "constants", "zeros", "near-constant", "batch-probe",
        "batch-larger", "batch-1", "own-1 again", "weights-2/own-4", "weights-2/scaled", "order-1/own-6",
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
    room: ServerContext, fault: str, draw: str, words: str
) -> None:
    check = room.check(fault)
    assert check.status == "incorrect", check.message
    assert check.message.startswith(f"draw {draw}: ")
    assert words in check.message
    failed = [row for row in check.draws if not row.ok]
    assert failed[0].draw == draw


@pytest.mark.parametrize(
    ("fault", "draw", "rule", "words"),
    [
        ("CACHED_FIRST", "own-2", "cached_results", "these are the results of an earlier call"),
        ("CACHED_BY_ADDRESS", "own-2", "cached_results", "these are the results of an earlier call"),
        ("WRONG_PROBE", "batch-probe", "wrong_at_other_size", "a size that is not refused must be right"),
    ],
)
def test_stale_results_and_wrong_ones_at_another_size_are_fatal(
    room: ServerContext, fault: str, draw: str, rule: str, words: str
) -> None:
    check = room.check(fault)
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
    room: ServerContext, fault: str, status: str, words: str
) -> None:
    check = room.check(fault)
    assert check.status == status, check.message
    assert words in check.message


def test_an_endless_loop_is_timed_out_and_the_next_check_is_clean(room: ServerContext) -> None:
    check = room.check("HANG", options=CheckOptions(call_timeout_s=1.0))
    assert check.status == "timed_out", check.message
    assert room.check("NONE").status == "accepted"


def test_memory_beyond_the_limit_is_out_of_memory(room: ServerContext) -> None:
    check = room.check("ALLOCATES", options=CheckOptions(memory_bytes=1 << 30))
    assert check.status == "out_of_memory", check.message


def test_what_a_program_prints_does_not_reach_the_verdict(room: ServerContext) -> None:
    assert room.check("PRINTS").status == "accepted"


def test_a_program_that_refuses_another_leading_size_is_specialized(room: ServerContext) -> None:
    check = room.check("FIXED_BATCH")
    assert check.status == "accepted"
    assert check.flags == ("specialized",)
    assert any("made for 8 rows" in reason for reason in check.not_checked)


def test_a_fixed_shape_policy_makes_no_batch_probe(room: ServerContext) -> None:
    task = linear_relu_task(room.store, contract=Contract(shape_policy="fixed"))
    check = room.check("FIXED_BATCH", task=task)
    assert check.status == "accepted"
    assert check.flags == ()


def test_a_relaxed_contract_marks_the_result(room: ServerContext) -> None:
    task = linear_relu_task(room.store, contract=Contract(relaxed=True))
    assert room.check("NONE", task=task).flags == ("relaxed",)


def test_a_failed_build_names_the_first_error(room: ServerContext) -> None:
    program = faulty_program(room.store, "NO_SUCH_FAULT")
    check = check_program(
        Trial(
            task=room.task,
            program=program,
            build=build(program, room.store),
            session=room.session,
            store=room.store,
            facts=room.facts,
        )
    )
    assert check.status == "build_failed"
    assert "NO_SUCH_FAULT" in check.message
    assert check.sandbox is None


def test_a_native_program_for_a_random_reference_is_unmeasured(room: ServerContext) -> None:
    program = faulty_program(room.store, "NONE")
    built: Build = build(program, room.store)
    facts: ReferenceFacts = room.facts.model_copy(update={"uses_rng": True})
    check = check_program(
        Trial(
            task=room.task, program=program, build=built, session=room.session, store=room.store, facts=facts
        )
    )
    assert check.status == "unmeasured"
    assert check.flags == ("unsupported_rng",)


def test_a_task_for_a_device_that_is_not_here_is_unmeasured(room: ServerContext, tmp_path: Path) -> None:
    task = linear_relu_task(room.store, target="cuda:sm_90")
    check = room.check("NONE", task=task)
    assert check.status == "unmeasured"
    assert "no CUDA device" in check.message


def test_time_that_is_over_is_named_and_not_hidden(room: ServerContext) -> None:
    program = faulty_program(room.store, "NONE")
    check = check_program(
        Trial(
            task=room.task,
            program=program,
            build=build(program, room.store),
            session=room.session,
            store=room.store,
            facts=room.facts,
            reference=room.reference,
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


def test_a_python_program_that_was_cut_off_says_that_its_share_was_not_weighed(room: ServerContext) -> None:
    source = (
        (PROGRAMS / "linear_relu.py").read_text(encoding="utf-8").replace("class Model(", "class ModelNew(")
    )
    check = check_program(
        Trial(
            task=room.task,
            program=model_new(room.store, source),
            build=None,
            session=room.session,
            store=room.store,
            facts=room.facts,
            reference=room.reference,
            deadline_s=0.0,
        )
    )
    assert (check.status, check.flags) == ("accepted", ("incomplete",))
    assert "who did the work: the time for the check was over" in check.not_checked
