"""What a resumed run refuses."""

from pathlib import Path

import pytest

from stitch_planner.loop import SolveRequest, solve
from stitch_planner.run_events import RunStarted
from stitch_planner.runs import Run, Workspace
from stitch_tools.errors import UsageError
from stitch_tools.models import Environment, Task
from stitch_tools.processes.interpreter import find_interpreter


@pytest.fixture
def begun(tmp_path: Path) -> Workspace:
    """A workspace with a run that another machine began."""
    workspace = Workspace(tmp_path)
    task = Task(name="model", files=(), main="model.py")
    run = Run(workspace.runs_folder / "20260101-model", workspace.store)
    environment = Environment(stitch_version="0.0.1", platform="Plan 9", cpu="Z80")
    run.record(
        RunStarted(
            task=workspace.store.put_fact(task),
            task_id=task.task_id,
            coder="stitcher",
            quick=False,
            interpreter=find_interpreter(None, tmp_path).path,
            environment=workspace.store.put_fact(environment),
        )
    )
    run.close()
    return workspace


def test_a_run_of_another_machine_is_not_continued(begun: Workspace) -> None:
    with pytest.raises(UsageError, match="platform was Plan 9"):
        solve(SolveRequest(workspace=begun.root, resume="last"))


@pytest.mark.parametrize("change", [{"quick": True}, {"overrides": {"rtol": 1.0}}, {"inputs": "make"}])
def test_a_resumed_run_keeps_what_it_was_asked(begun: Workspace, change: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="keeps its contract"):
        solve(SolveRequest(workspace=begun.root, resume="last", **change))  # pyright: ignore[reportArgumentType]


def test_a_refused_run_is_free_for_the_next_process(begun: Workspace) -> None:
    with pytest.raises(UsageError):
        solve(SolveRequest(workspace=begun.root, resume="last"))
    Run(begun.run_folder("last"), begun.store).close()


def test_nothing_and_both_are_no_request(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to solve"):
        solve(SolveRequest(workspace=tmp_path))
    Run(Workspace(tmp_path).runs_folder / "r", Workspace(tmp_path).store).close()
    with pytest.raises(UsageError, match="has its reference already"):
        solve(SolveRequest(workspace=tmp_path, reference="x.py", resume="r"))
