"""However a solve ends, its log says so, and resuming does what is left."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stitch_planner.budget import Budget
from stitch_planner.context import RunContext
from stitch_planner.handlers import HANDLERS
from stitch_planner.loop import solve
from stitch_planner.opening import SolveRequest
from stitch_planner.runs.run import RunSummary, Workspace, read_state, summarize
from stitch_planner.stitcher.stitch import StitchFailedError
from stitch_tools.errors import BudgetError, InterruptedRunError, TaskError
from stitch_tools.machine.device_lock import device_lock
from stitch_tools.storage.events import Event, read_events

MODEL = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(16, 8)]
"""


def request(folder: Path, source: str = MODEL, **fields: object) -> SolveRequest:
    """A request for the reference `model.py` of `folder`, which is written if it is not there."""
    path = folder / "model.py"
    if not path.exists():
        path.write_text(source, encoding="utf-8")
    found: dict[str, object] = {"workspace": folder, "cache_dir": folder / "cache", "quick": True}
    if "resume" not in fields:
        found["reference"] = str(path)
    return SolveRequest(**(found | fields))  # pyright: ignore[reportArgumentType]


def events(folder: Path) -> list[Event]:
    return read_events(Workspace(folder).run_folder("last") / "events.jsonl")


def listed(folder: Path) -> RunSummary:
    workspace = Workspace(folder)
    return summarize(workspace, workspace.run_folder("last").name)


def resume(folder: Path) -> SolveRequest:
    return request(folder, resume="last", quick=False)


def test_a_stitcher_that_cannot_ends_the_run_as_failed_and_cannot_again(tmp_path: Path) -> None:
    asked = request(tmp_path, MODEL.replace("self.norm(x)", "x * x.sum().item()"))
    with pytest.raises(StitchFailedError) as failure:
        solve(asked)
    last = events(tmp_path)[-1]
    assert (last.kind, last.payload["step"], last.payload["code"]) == ("run_stopped", "program", "stitch")
    assert last.payload["message"] == failure.value.message
    assert last.payload["hint"] == failure.value.hint
    assert (listed(tmp_path).status, listed(tmp_path).message) == ("failed", failure.value.message)
    with pytest.raises(StitchFailedError, match="graph of operations"):
        solve(resume(tmp_path))
    kinds = [event.kind for event in events(tmp_path)]
    assert kinds[-3:] == ["run_stopped", "run_resumed", "run_stopped"]
    assert kinds.count("reference_observed") == 1, "nothing that was done is repeated"


def test_an_error_that_was_mended_is_behind_the_resumed_run(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (tmp_path / "task.toml").write_text(
        'reference = "model.py"\nsearch_path = ["modules"]\n', encoding="utf-8"
    )
    asked = request(tmp_path, "import not_there_yet\n" + MODEL, reference=str(tmp_path / "task.toml"))
    with pytest.raises(TaskError, match="not_there_yet"):
        solve(asked)
    assert (listed(tmp_path).status, events(tmp_path)[-1].payload["code"]) == ("failed", "task")
    (modules / "not_there_yet.py").write_text("", encoding="utf-8")
    stop = threading.Event()

    def halt(event: Event) -> None:
        if event.kind == "reference_observed":
            stop.set()

    with pytest.raises(InterruptedRunError, match="before the step 'graph'"):
        solve(resume(tmp_path), stop=stop, on_event=halt)
    kinds = [event.kind for event in events(tmp_path)]
    assert kinds == ["run_started", "run_stopped", "run_resumed", "reference_observed", "run_stopped"]
    assert events(tmp_path)[-1].payload["code"] == "interrupted"
    assert listed(tmp_path).status == "open"
    assert listed(tmp_path).message.startswith("stopped before the step 'graph'")


def test_a_run_that_waits_for_the_device_ends_at_once_when_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))
    stop = threading.Event()

    def press(sentence: str) -> None:
        if sentence.startswith("waiting for the device"):
            stop.set()

    stopped = pytest.raises(InterruptedRunError, match="before the step 'graph'")
    with device_lock("cpu", wait_s=0), stopped as error:
        solve(request(tmp_path), emit=press, stop=stop)
    assert [row.tool for row in error.value.remedies] == ["solve"]
    assert events(tmp_path)[-1].payload["code"] == "interrupted"


def test_a_spent_time_limit_leaves_an_open_run_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="time limit") as error:
        solve(request(tmp_path, time_limit_s=0.0))
    assert [row.tool for row in error.value.remedies] == ["solve"]
    assert [event.kind for event in events(tmp_path)] == ["run_started", "run_stopped"]
    assert events(tmp_path)[-1].payload["code"] == "budget"
    assert (listed(tmp_path).status, listed(tmp_path).message) == ("open", error.value.message)


def test_a_time_limit_that_ends_in_the_timing_still_gives_the_program_and_its_times(tmp_path: Path) -> None:
    def late_bench(context: RunContext) -> None:
        with pytest.raises(BudgetError, match="time limit"):
            Budget(end_s=0.0).check(context.run)
        context.workbench = replace(context.workbench, deadline_s=time.monotonic())
        HANDLERS["bench"](context)

    def late_decision(context: RunContext) -> None:
        Budget(end_s=0.0).check(context.run)
        HANDLERS["decision"](context)

    handlers = {**HANDLERS, "bench": late_bench, "decision": late_decision}
    result = solve(request(tmp_path), handlers=handlers)

    assert result.status == "accepted"
    assert result.bench is not None
    timings = {row.name: row for row in result.bench.timings}
    for row in (timings["program"], timings["eager"]):
        # One round beside others may leave no slope of a short call, and says so.
        assert row.throughput_us is not None or "others took more time than the calls" in row.note
    assert timings["compile:default"].throughput_us is None
    assert "time limit" in timings["compile:default"].note


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [(KeyboardInterrupt, "interrupted", "open"), (ZeroDivisionError, "internal", "failed")],
)
def test_what_nobody_expected_is_told_apart_from_an_interrupt(
    tmp_path: Path, error: type[BaseException], code: str, status: str
) -> None:
    def emit(message: str) -> None:
        raise error(message)

    with pytest.raises(error, match="observing") as caught:
        solve(request(tmp_path), emit=emit)
    run_id = Workspace(tmp_path).run_folder("last").name
    named = [row.arguments for row in getattr(caught.value, "remedies", ())]
    assert named == ([{"run_id": run_id}] if status == "open" else [])
    stopped = read_state(Workspace(tmp_path).run_folder("last")).stopped
    assert stopped is not None
    assert (stopped.code, stopped.step, listed(tmp_path).status) == (code, "reference", status)
