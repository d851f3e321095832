"""Programs of an outside agent in a run: recorded as those of `solve`, nothing that was known is lost."""

import threading
from pathlib import Path

import pytest

from stitch_planner.join import certify_program, joined, known_of, reopen, require_correct
from stitch_planner.opening import begin_run
from stitch_planner.plan import Plan
from stitch_planner.policy import decide, open_step
from stitch_planner.runs.recorder import (
    OUTSIDE,
    record_bench,
    record_build,
    record_check,
    record_end,
    record_program,
)
from stitch_planner.runs.run import Run, Workspace, read_state, started
from stitch_planner.runs.run_events import (
    GraphCaptured,
    PlanMade,
    ReferenceObserved,
    RunFinished,
    RunResumed,
    RunStopped,
)
from stitch_planner.workbench import Workbench
from stitch_tools.errors import LockedError, StoreError, UsageError
from stitch_tools.models.program import STITCHER, Build, Program
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Bench, Check, Ratio
from stitch_tools.run.interpreter import Interpreter

TASK = Task(name="model", files=(), main="model.py")
PYTHON = Interpreter("python3", "3.11.0", "2.13.0", "own")


def program(workspace: Workspace, text: str) -> Program:
    files = workspace.store.put_files({"program.cpp": text.encode("utf-8")})
    return Program(format="native", target="cpu", files=files, main="program.cpp")


def build(of: Program) -> Build:
    return Build(program_id=of.program_id, ok=True, toolchain="cpp", compiler="g++")


def check(of: Program, status: str, **fields: object) -> Check:
    found = {"program_id": of.program_id, "task_id": TASK.task_id, "status": status}
    return Check.model_validate(found | fields)


def bench(of: Program, low: float) -> Bench:
    ratio = Ratio(baseline="eager", speedup=low + 0.1, low=low, high=low + 0.2, outcome="faster")
    return Bench(program_id=of.program_id, task_id=TASK.task_id, outcome="faster", ratios=(ratio,))


def judge(run: Run, of: Program, status: str, **fields: object) -> None:
    record_build(run, of, build(of))
    record_check(run, of, check(of, status, **fields))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.fixture
def run_id(workspace: Workspace) -> str:
    run = begin_run(Workbench(workspace, PYTHON), TASK, coder=OUTSIDE)
    run.close()
    return run.run_id


def test_what_is_known_of_a_program_stays_when_another_one_is_worked_on(
    workspace: Workspace, run_id: str
) -> None:
    good, bad = program(workspace, "a"), program(workspace, "b")
    with joined(workspace, run_id) as run:
        judge(run, good, "accepted")
        record_bench(run, good, bench(good, 2.0))
        judge(run, bad, "incorrect")
        current = run.state.current
        assert current is not None
        assert (current.program_id, current.bench) == (bad.program_id, None)
        with pytest.raises(UsageError, match="its check says incorrect"):
            require_correct(run, bad)
        require_correct(run, good)
        before = run.state.events
        record_program(run, good)
        assert run.state.events == before + 1, "it is taken up again, and nothing of it recorded twice"
        known = known_of(run, good.program_id)
    assert known is not None
    assert known.bench == bench(good, 2.0)
    state = read_state(workspace.run_folder(run_id))
    assert started(state).coder == OUTSIDE
    assert [row.author for row in state.attempts] == [OUTSIDE, OUTSIDE]
    assert state.current is not None
    assert state.current.program_id == good.program_id


def test_each_program_lies_readable_in_a_folder_of_its_own(workspace: Workspace, run_id: str) -> None:
    with joined(workspace, run_id) as run:
        for text in ("a", "b", "a"):
            record_program(run, program(workspace, text))
        rounds = {
            path.relative_to(run.folder).as_posix(): path.read_text(encoding="utf-8")
            for path in run.folder.glob("rounds/*/program/program.cpp")
        }
    assert rounds == {"rounds/000/program/program.cpp": "a", "rounds/001/program/program.cpp": "b"}


def test_a_refused_program_names_the_best_one_of_the_run(workspace: Workspace, run_id: str) -> None:
    good, better, bad = (program(workspace, text) for text in "abc")
    with joined(workspace, run_id) as run:
        for row, low in ((better, 3.0), (good, 2.0)):
            judge(run, row, "accepted")
            record_bench(run, row, bench(row, low))
        judge(run, bad, "incorrect")
        for refused, tool in (
            (lambda: require_correct(run, bad), "benchmark_program"),
            (lambda: certify_program(run, TASK, bad, Plan(target="cpu", steps=())), "certify_program"),
        ):
            with pytest.raises(UsageError) as caught:
                refused()
            first, second = caught.value.remedies
            assert (first.tool, first.arguments["program"]) == (tool, better.program_id[:16])
            assert (second.tool, second.arguments["run_id"]) == ("compile_program", run_id)


def test_a_refused_program_leaves_a_finished_run_as_it_ended(workspace: Workspace, run_id: str) -> None:
    bad, good = program(workspace, "b"), program(workspace, "a")
    with joined(workspace, run_id) as run:
        judge(run, bad, "incorrect")
        judge(run, good, "accepted")
        end = RunFinished(status="accepted", outcome="unmeasured", message="", program_id=good.program_id)
        run.record(end)
        with pytest.raises(UsageError, match="is not accepted: incorrect"):
            certify_program(run, TASK, bad, Plan(target="cpu", steps=()))
        assert run.state.finished == end


def test_a_correct_program_that_does_not_count_is_shown_and_not_certified(
    workspace: Workspace, run_id: str
) -> None:
    weak = program(workspace, "a")
    with joined(workspace, run_id) as run:
        judge(run, weak, "accepted", flags=("weak",))
        assert run.state.current is not None
        assert (run.state.current.accepted, run.state.best) == (True, None)
        with pytest.raises(UsageError, match="correct, but does not count: weak: ") as caught:
            certify_program(run, TASK, weak, Plan(target="cpu", steps=()))
        assert "--accept weak" in caught.value.hint


def test_the_same_program_is_recorded_once(workspace: Workspace, run_id: str) -> None:
    only = program(workspace, "a")
    with joined(workspace, run_id) as run:
        record_build(run, only, build(only))
        before = run.state.events
        record_program(run, only)
        assert run.state.events == before


def test_an_unchecked_program_is_sent_to_its_check(workspace: Workspace, run_id: str) -> None:
    row = program(workspace, "c")
    with joined(workspace, run_id) as run:
        with pytest.raises(UsageError, match="not checked in this run") as caught:
            require_correct(run, row)
        with pytest.raises(StoreError, match="without a check"):
            record_bench(run, row, bench(row, 2.0))
    (remedy,) = caught.value.remedies
    assert (remedy.tool, remedy.arguments) == (
        "check_program",
        {"run_id": run_id, "program": row.program_id},
    )


def test_two_clients_on_one_run_wait_for_each_other(workspace: Workspace, run_id: str) -> None:
    first, second = program(workspace, "a"), program(workspace, "b")
    with joined(workspace, run_id) as run:
        with pytest.raises(LockedError), joined(workspace, run_id, wait_s=0):
            pass

        def other() -> None:
            with joined(workspace, run_id) as theirs:
                record_program(theirs, second)

        thread = threading.Thread(target=other)
        thread.start()
        record_program(run, first)
    thread.join(timeout=20)
    state = read_state(workspace.run_folder(run_id))
    assert (state.events, state.current and state.current.program_id) == (3, second.program_id)


@pytest.mark.parametrize("name", ["events.jsonl", "rounds/000/program/program.cpp", "rounds"])
def test_a_run_with_a_link_is_not_opened_for_writing(workspace: Workspace, run_id: str, name: str) -> None:
    outside = workspace.root / "outside"
    place = workspace.run_folder(run_id) / name
    if place.exists():
        place.rename(outside)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(outside)
    with pytest.raises(StoreError, match="is a link"), joined(workspace, run_id):
        pass


def test_a_program_goes_on_where_its_run_was_stopped(workspace: Workspace, run_id: str) -> None:
    good = program(workspace, "a")
    with joined(workspace, run_id) as run:
        judge(run, good, "accepted")
        run.record(RunStopped(step="bench", code="interrupted", message="stopped", hint=""))
        record_bench(run, good, bench(good, 2.0))
        assert run.state.stopped is None
        assert run.state.best is not None
        assert run.state.best.safe_speedup == 2.0


def test_a_run_without_a_plan_resumes_behind_its_program(workspace: Workspace, run_id: str) -> None:
    good = program(workspace, "a")
    with joined(workspace, run_id) as run:
        assert run.state.resumed_at == "reference"
        judge(run, good, "accepted")
        assert run.state.plan is None
        assert run.state.resumed_at == "bench"
        resumed = run.record(RunResumed(step=run.state.resumed_at, lost=False))
        assert resumed.current is not None
        assert resumed.current.check is not None


def test_the_next_program_of_a_run_whose_only_one_is_wrong_is_the_stitcher_s(
    workspace: Workspace, run_id: str
) -> None:
    good, bad = program(workspace, "a"), program(workspace, "b")
    with joined(workspace, run_id) as run:
        judge(run, bad, "incorrect")
        assert decide(run.state, rounds_left=1).decision == "fix"
        judge(run, good, "accepted")
        judge(run, bad, "incorrect")
        next_one = decide(run.state, rounds_left=1)
    assert (next_one.decision, next_one.program_id) == ("next_step", good.program_id)


@pytest.mark.parametrize("author", ["", STITCHER])
def test_a_finished_run_is_reopened_once_for_a_program_of_the_stitcher(
    workspace: Workspace, run_id: str, author: str
) -> None:
    own = program(workspace, "a").model_copy(update={"author": author})
    with joined(workspace, run_id) as run:
        assert not reopen(run), "it is not finished"
        run.record(ReferenceObserved(facts="0" * 64))
        run.record(GraphCaptured(graph="0" * 64, ceilings=None, source="export"))
        run.record(PlanMade(plan="0" * 64, steps=1))
        judge(run, own, "accepted")
        record_bench(run, own, bench(own, 2.0))
        evidence = known_of(run, own.program_id)
        assert evidence is not None
        record_end(run, evidence)
        assert open_step(run.state) is None
        assert reopen(run) is (author != STITCHER)
        assert open_step(run.state) == ("program" if author != STITCHER else None)
        assert run.state.best is not None, "what is known of its program stays"
        stitched = program(workspace, "b").model_copy(update={"author": STITCHER})
        judge(run, stitched, "accepted")
        record_bench(run, stitched, bench(stitched, 1.5))
        made = decide(run.state, rounds_left=0)
    assert (made.decision, made.program_id) == ("accept", own.program_id)
