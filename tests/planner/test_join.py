"""Steps of an outside agent in a run: recorded as `solve` records its own, nothing that was known is lost."""

import threading
from pathlib import Path

import pytest

from stitch_planner.join import (
    OUTSIDE,
    accepted_check,
    joined,
    known_of,
    record_bench,
    record_build,
    record_check,
    record_program,
    take_usable,
)
from stitch_planner.loop import begin_run
from stitch_planner.runs.run import Workspace, read_state, started
from stitch_planner.runs.run_events import RunResumed, RunStopped
from stitch_tools.errors import LockedError, StoreError, UsageError
from stitch_tools.models import Bench, Build, Check, Program, SourceFile, Task
from stitch_tools.run.interpreter import Interpreter

TASK = Task(name="model", files=(), main="model.py")
PYTHON = Interpreter("python3", "3.11.0", "2.13.0", "own")


def program(text: str) -> Program:
    file = SourceFile(path="program.cpp", sha256=text * 64, size=1)
    return Program(format="native", target="cpu", files=(file,), main="program.cpp")


def build(of: Program) -> Build:
    return Build(program_id=of.program_id, ok=True, toolchain="cpp", compiler="g++")


def check(of: Program, status: str) -> Check:
    return Check.model_validate({"program_id": of.program_id, "task_id": TASK.task_id, "status": status})


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    run = begin_run(Workspace(tmp_path), TASK, PYTHON, coder=OUTSIDE)
    run.close()
    return run.run_id


def test_a_program_that_comes_back_brings_what_was_known_of_it(tmp_path: Path, run_id: str) -> None:
    workspace = Workspace(tmp_path)
    good, bad = program("a"), program("b")
    with joined(workspace, run_id) as run:
        record_check(run, good, build(good), check(good, "accepted"))
        record_bench(run, good, Bench(program_id=good.program_id, task_id=TASK.task_id, outcome="faster"))
        record_check(run, bad, build(bad), check(bad, "incorrect"))
        assert run.state.bench is None, "nothing of the other program counts for this one"
        with pytest.raises(UsageError, match="its check says incorrect"):
            accepted_check(run, bad)
        assert accepted_check(run, good).status == "accepted"
        assert run.state.bench is not None
        assert run.state.bench.outcome == "faster"
        seen = known_of(run, bad.program_id)
    assert [part is not None for part in seen] == [True, True, False]
    state = read_state(workspace.run_folder(run_id))
    assert started(state).coder == OUTSIDE
    assert state.program is not None
    assert state.program.program_id == good.program_id


def test_the_accepted_program_is_named_and_taken_in_place_of_a_rejected_one(
    tmp_path: Path, run_id: str
) -> None:
    good, bad = program("a"), program("b")
    said: list[str] = []
    with joined(Workspace(tmp_path), run_id) as run:
        record_check(run, good, build(good), check(good, "accepted"))
        record_check(run, bad, build(bad), check(bad, "incorrect"))
        with pytest.raises(UsageError, match="its check says incorrect") as caught:
            accepted_check(run, bad)
        assert f"name program {good.program_id[:16]}, which was accepted" in caught.value.hint
        assert "check_program" not in caught.value.hint, "that would end in the same way"
        take_usable(run, TASK, PYTHON, said.append)
        assert run.state.program is not None
        assert run.state.program.program_id == good.program_id
        assert run.state.check is not None
        assert run.state.check.status == "accepted"
        before = run.state.events
        take_usable(run, TASK, PYTHON, said.append)
        assert run.state.events == before
    assert said == [f"going on with program {good.program_id[:16]}, which was accepted in this run"]


def test_the_same_program_is_recorded_once(tmp_path: Path, run_id: str) -> None:
    only = program("a")
    with joined(Workspace(tmp_path), run_id) as run:
        record_build(run, only, build(only))
        before = run.state.events
        record_program(run, only)
        assert run.state.events == before


def test_an_unchecked_program_is_not_accepted(tmp_path: Path, run_id: str) -> None:
    with (
        joined(Workspace(tmp_path), run_id) as run,
        pytest.raises(UsageError, match="not checked in this run"),
    ):
        accepted_check(run, program("c"))


def test_two_clients_on_one_run_wait_for_each_other(tmp_path: Path, run_id: str) -> None:
    workspace = Workspace(tmp_path)
    first, second = program("a"), program("b")
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
    assert (state.events, state.program and state.program.program_id) == (3, second.program_id)


@pytest.mark.parametrize("name", ["events.jsonl", "rounds/000/program/program.cpp", "rounds"])
def test_a_run_with_a_link_is_not_opened_for_writing(tmp_path: Path, run_id: str, name: str) -> None:
    workspace = Workspace(tmp_path)
    outside = tmp_path / "outside"
    place = workspace.run_folder(run_id) / name
    if place.exists():
        place.rename(outside)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(outside)
    with pytest.raises(StoreError, match="is a link"), joined(workspace, run_id):
        pass


def test_a_program_stays_accepted_where_its_run_was_stopped(tmp_path: Path, run_id: str) -> None:
    good = program("a")
    with joined(Workspace(tmp_path), run_id) as run:
        record_check(run, good, build(good), check(good, "accepted"))
        run.record(RunStopped(step="bench", code="interrupted", message="stopped", hint=""))
        assert accepted_check(run, good).status == "accepted"
        assert run.state.stopped is None
        assert run.state.program is not None
        assert run.state.program.program_id == good.program_id


def test_a_run_without_a_plan_goes_on_behind_its_program(tmp_path: Path, run_id: str) -> None:
    good = program("a")
    with joined(Workspace(tmp_path), run_id) as run:
        assert run.state.resumed_at == "reference"
        record_check(run, good, build(good), check(good, "accepted"))
        assert run.state.plan is None
        assert run.state.resumed_at == "bench"
        resumed = run.record(RunResumed(step=run.state.resumed_at))
        assert resumed.program is not None
        assert resumed.check is not None
