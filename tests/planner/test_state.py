from pathlib import Path

import pytest

from stitch_planner.handlers import HANDLERS
from stitch_planner.runs.run import LostStep, Run, Workspace, lost_step, read_state, summarize
from stitch_planner.runs.run_events import (
    KINDS,
    BuildFinished,
    CheckFinished,
    DecisionMade,
    GraphCaptured,
    ModelAsked,
    PlanMade,
    ProgramWritten,
    ReferenceObserved,
    RunFinished,
    RunResumed,
    kind_of,
)
from stitch_planner.runs.state import FOUND, State, replay
from stitch_tools.errors import LockedError, StoreError, UsageError
from stitch_tools.models.program import Program
from stitch_tools.models.task import Task
from stitch_tools.storage.events import Event
from stitch_tools.storage.store import Store

PROGRAM = ProgramWritten(program="a" * 64, program_id="b" * 64)
BUILD = BuildFinished(program_id="b" * 64, build="c" * 64, ok=True)
VALUES: dict[str, object] = {
    "quick": True,
    "min_speedup": 1.5,
    "warnings": ["w"],
    "notes": ["n"],
    "steps": 2,
    "ok": True,
    "decision": "accept",
    "threads": 2,
    "rounds": 3,
    "search": "tree",
    "review": "model",
    "memory": True,
    "lessons": [],
    "result": {"scores": []},
    "planner": "model",
    "predicted_us": 2.5,
    "call": 0,
    "tokens": 5,
    "most_tokens": 7,
    "most_usd": 0.5,
    "usd": 0.25,
    "require_sandbox": "full",
    "policy": {"flags": ["partial"]},
    "flags": ["partial"],
    "counts": True,
    "speedup": 2.0,
    "safe_speedup": 1.5,
    "cpu_speedup": 1.4,
    "lost": False,
}
"""Values of the fields that are no plain text."""


ASKED = ModelAsked(call=0, request="f" * 64, model="m", most_tokens=7)


def test_every_kind_changes_the_state() -> None:
    for kind, model in KINDS.items():
        event = model.model_validate({name: VALUES.get(name, "x") for name in model.model_fields})
        assert kind_of(event) == kind
        before = State().after(PROGRAM).after(ASKED)
        after = before.after(event)
        assert after.model_copy(update={"events": before.events}) != before, kind


def test_a_program_that_is_taken_up_again_keeps_what_was_known_of_it() -> None:
    other = ProgramWritten(program="d" * 64, program_id="e" * 64)
    decision = DecisionMade(program_id="b" * 64, decision="accept", reason="")
    state = State().after(PROGRAM).after(BUILD).after(decision)
    state = state.after(other)
    assert (state.decision, len(state.attempts)) == (None, 2)
    assert state.current is not None
    assert (state.current.program, state.current.build) == (other, None)
    state = state.after(PROGRAM)
    assert state.current is not None
    assert (state.current.program, state.current.build) == (PROGRAM, BUILD)


def test_evidence_on_a_program_that_the_run_does_not_know_belongs_to_the_one_written_last() -> None:
    state = State().after(PROGRAM).after(BUILD.model_copy(update={"program_id": ""}))
    assert state.current is not None
    assert state.current.build is not None


def test_an_older_run_ended_with_the_program_that_it_worked_on() -> None:
    other = ProgramWritten(program="d" * 64, program_id="e" * 64)
    counted = CheckFinished(program_id="b" * 64, check="c", status="accepted", counts=True)
    state = State().after(PROGRAM).after(counted).after(other)
    assert state.best is not None
    end = RunFinished(status="incorrect", outcome="unmeasured", message="")
    assert (state.after(end).result, state.result) == (state.current, state.best)


@pytest.mark.parametrize("damage", [b"#", None], ids=["damaged", "missing"])
def test_a_step_whose_result_the_store_lost_is_open_again_with_all_that_follows(
    tmp_path: Path, damage: bytes | None
) -> None:
    store = Store(tmp_path / "s")
    run = Run(tmp_path / "r", store)
    reference = ReferenceObserved(facts=store.put(b"facts"))
    graph = GraphCaptured(graph=store.put(b"graph"), ceilings=store.put(b"ceilings"), source="export")
    for event in (reference, graph, PlanMade(plan=store.put(b"plan"), steps=1)):
        run.record(event)
    assert lost_step(run) is None
    blob = store.path(graph.ceilings or "")
    blob.unlink() if damage is None else blob.write_bytes(damage)
    assert lost_step(run) == LostStep("graph")
    run.record(RunResumed(step="graph"))
    run.close()
    state = read_state(tmp_path / "r")
    assert (state.reference, state.graph, state.plan) == (reference, None, None)


@pytest.mark.parametrize("name", ["program", "check"])
def test_a_program_that_lost_something_is_worked_on_again(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "s")
    run = Run(tmp_path / "r", store)
    files = store.put_files({"program.cpp": b"int x;"})
    good = Program(format="native", target="cpu", files=files, main="program.cpp")
    first = ProgramWritten(program=store.put_fact(good), program_id=good.program_id)
    other = Program(format="native", target="cpu", files=(), main="other.cpp")
    second = ProgramWritten(program=store.put_fact(other), program_id=other.program_id)
    checked = CheckFinished(
        program_id=good.program_id, check=store.put(b"check"), status="accepted", counts=True
    )
    for event in (first, checked, second):
        run.record(event)
    assert lost_step(run) is None
    store.path(files[0].sha256 if name == "program" else checked.check).unlink()
    assert lost_step(run) == LostStep(name, good.program_id), "the best one is looked at, too"
    state = run.record(RunResumed(step=name, program_id=good.program_id))
    run.close()
    attempt = state.attempt(good.program_id)
    assert attempt is not None
    assert (attempt.check, attempt.lost, state.best) == (None, name == "program", None)
    assert state.current is not None
    assert (state.current == attempt) == (name == "check"), "without its files there is nothing to work on"


def test_there_is_a_handler_for_every_step() -> None:
    assert tuple(name for name in HANDLERS if name != "review") == FOUND


def test_unknown_kinds_are_counted_and_ignored_and_wrong_payloads_refused() -> None:
    unknown = Event(seq=0, at="now", kind="from_the_future", payload={"x": 1})
    assert replay([unknown]) == State(events=1)
    with pytest.raises(StoreError, match="does not fit its schema"):
        replay([Event(seq=0, at="now", kind="build_finished", payload={"ok": "perhaps"})])


def test_a_run_goes_on_where_its_log_ends(tmp_path: Path) -> None:
    run = Run(tmp_path / "r", Store(tmp_path / "s"))
    run.record(PROGRAM)
    with pytest.raises(LockedError):
        Run(tmp_path / "r", run.store)
    run.close()
    again = Run(tmp_path / "r", run.store)
    again.record(BUILD)
    again.close()
    assert read_state(tmp_path / "r") == State().after(PROGRAM).after(BUILD)


def test_a_log_cut_at_any_byte_replays_its_whole_events(tmp_path: Path) -> None:
    run = Run(tmp_path, Store(tmp_path / "store"))
    states = [State()]
    for model in KINDS.values():
        fields = {name: VALUES.get(name, "x") for name in model.model_fields}
        states.append(run.record(model.model_validate(fields)))
    assert {event.kind for event in run.log.events} == set(KINDS)
    run.close()
    log = tmp_path / "events.jsonl"
    data = log.read_bytes()
    for cut in range(len(data) + 1):
        log.write_bytes(data[:cut])
        assert read_state(tmp_path) == states[data[:cut].count(b"\n")], cut


def test_runs_are_found_by_a_unique_beginning(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for name in ("20260101-a", "20260102-b"):
        Run(workspace.runs_folder / name, workspace.store).close()
    assert workspace.run_folder("20260102").name == "20260102-b"
    assert workspace.run_folder("last").name == "20260102-b"
    for wrong in ("2026", "x", ""):
        with pytest.raises(UsageError, match="runs list"):
            raise_with_hint(workspace, wrong)


def raise_with_hint(workspace: Workspace, run_id: str) -> None:
    try:
        workspace.run_folder(run_id)
    except UsageError as error:
        raise UsageError(f"{error.message} / {error.hint}") from error


def test_a_run_killed_before_its_first_event_is_named(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    Run(workspace.runs_folder / "r", workspace.store).close()
    with pytest.raises(StoreError, match="no beginning"):
        summarize(workspace, "r")


def test_a_new_run_folder_is_named_after_time_task_and_hash(tmp_path: Path) -> None:
    task = Task(name="mein modell ü", files=(), main="x.py")
    name = Workspace(tmp_path).new_run_folder(task).name
    assert name.endswith(f"-mein-modell-{task.task_id[:8]}")
    assert not (tmp_path / ".stitch").exists()


def test_decisions_are_one_of_the_named_six() -> None:
    with pytest.raises(ValueError, match="decision"):
        DecisionMade.model_validate({"program_id": "p", "decision": "perhaps", "reason": ""})
