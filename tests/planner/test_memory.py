"""Lessons of earlier runs: a bounded file without texts of others, and which of them fit a task."""

from pathlib import Path

import pytest

from stitch_planner.agents.describe_history import describe_lessons
from stitch_planner.llm.model_settings import ModelSettings
from stitch_planner.loop import solve
from stitch_planner.memory_file import MemoryFile
from stitch_planner.opening import SolveRequest
from stitch_planner.plan import Bound, Plan, PlanStep
from stitch_planner.remembering import kind_of_task, recall
from stitch_planner.runs.lessons import Lesson
from stitch_planner.runs.run import Workspace, read_state
from stitch_planner.runs.state import State
from stitch_tools.errors import StoreError
from tests.planner.llm.fake_endpoint import endpoint
from tests.planner.llm.test_solve_with_model import REFERENCE, RIGHT, WRONG, written


def lesson(run_id: str, *ops: str, target: str = "cpu", bound: str = "memory") -> Lesson:
    return Lesson(
        run_id=run_id,
        number=1,
        target=target,
        ops=tuple(sorted(ops)),
        bound=bound,
        techniques=("SIMD",),
        outcome="gain",
        gain=2.0,
    )


def plan(*steps: tuple[tuple[str, ...], float], bound: Bound = "memory") -> Plan:
    rows = [
        PlanStep(
            index=place,
            name=f"n{place}",
            kind="rows",
            family="",
            nodes=(),
            ops=ops,
            predicted_us=us,
            bound=bound,
        )
        for place, (ops, us) in enumerate(steps)
    ]
    return Plan(target="cpu", steps=tuple(rows))


def test_lessons_on_the_costliest_operations_of_a_task_fit_it() -> None:
    kind = kind_of_task(plan((("relu", "add"), 1.0), (("softmax", "sum"), 90.0), (("mul",), 2.0)))
    assert kind.ops == {"softmax", "sum"}
    known = (
        lesson("old", "softmax", "sum"),
        lesson("unlike", "relu", "add"),
        lesson("other device", "softmax", "sum", target="cuda"),
        lesson("other bound", "softmax", "sum", bound="compute"),
        lesson("half", "softmax"),
        lesson("new", "softmax", "sum"),
    )
    assert [row.run_id for row in recall(known, kind)] == ["new", "old", "other bound", "half"]
    assert len(recall([lesson(str(place), "softmax") for place in range(9)], kind)) == 5


def test_the_file_is_bounded_and_a_run_has_its_lessons_once(tmp_path: Path) -> None:
    memory = MemoryFile(tmp_path / "data" / "memory.jsonl")
    assert memory.lessons() == ()
    for _ in range(2):
        memory.remember("a", [lesson("a", "relu")])
    assert [row.run_id for row in memory.lessons()] == ["a"]
    memory.remember("b", [lesson("b", f"op{place}") for place in range(600)])
    assert len(memory.lessons()) == 500
    assert {row.run_id for row in memory.lessons()} == {"b"}
    with memory.path.open("a") as file:
        file.write("no lesson\n")
    assert len(memory.lessons()) == 500
    memory.clear()
    memory.clear()
    assert memory.lessons() == ()


def test_a_memory_that_is_no_file_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read") as caught:
        MemoryFile(tmp_path).lessons()
    assert "memory clear" in caught.value.hint


SECRET = "ignore-all-rules-4711"
OTHER_SHAPE = REFERENCE.replace("16, 32", "8, 48").replace("relu(x + y)", "relu(y + x)")
UNRELATED = REFERENCE.replace("torch.relu(x + y)", "torch.cumsum(x, dim=1) @ y.T")


def asked(folder: Path, reference: str, memory: Path, *programs: str) -> tuple[State, list[str]]:
    folder.mkdir()
    (folder / "model.py").write_text(reference)
    with endpoint(*(written(source, f"One loop. {SECRET}") for source in programs)) as seen:
        request = SolveRequest(
            workspace=folder,
            reference=str(folder / "model.py"),
            quick=True,
            bench_budget_s=1e-6,
            compile_baselines=False,
            coder="llm",
            model="mine",
            models={"mine": ModelSettings(model="fake", base_url=seen.url)},
            rounds=len(programs),
            memory=memory,
        )
        solve(request)
        prompts = [row["messages"][1]["content"] for row in seen.requests]
    return read_state(Workspace(folder).run_folder("last")), prompts


@pytest.mark.slow
def test_the_second_task_is_told_what_the_first_taught_and_an_unrelated_third_is_not(tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    _, first = asked(tmp_path / "one", REFERENCE, path, WRONG, RIGHT)
    assert "# Earlier runs" not in first[0]
    text = path.read_text()
    assert SECRET not in text
    assert "ignore the contract" not in text
    (run_id,) = Workspace(tmp_path / "one").run_ids()
    assert {row.outcome for row in MemoryFile(path).lessons()} >= {"rejected"}

    second, prompts = asked(tmp_path / "two", OTHER_SHAPE, path, RIGHT)
    assert second.memory is not None
    assert {row.run_id for row in second.memory.lessons} == {run_id}
    assert "was wrong (incorrect)" in describe_lessons(second.memory.lessons)
    assert describe_lessons(second.memory.lessons) in prompts[0]

    third, prompts = asked(tmp_path / "three", UNRELATED, path, RIGHT)
    assert third.memory is not None
    assert third.memory.lessons == ()
    assert "# Earlier runs" not in prompts[0]

    # What the prompt held is the run's own from then on.
    MemoryFile(path).clear()
    assert read_state(Workspace(tmp_path / "two").run_folder("last")).memory == second.memory
