"""`runs list` and `runs show` of a run that did not reach its end."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stitch_mcp.certificates import export_certificate
from stitch_mcp.cli import main
from stitch_planner.opening import begin_run
from stitch_planner.runs.recorder import OUTSIDE, record_check
from stitch_planner.runs.run import Workspace
from stitch_planner.runs.run_events import ModelAnswered, ModelAsked, RunFinished
from stitch_planner.workbench import Workbench
from stitch_tools.errors import UsageError
from stitch_tools.models.program import Program
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Check
from stitch_tools.run.interpreter import Interpreter
from stitch_tools.storage.events import lock_path
from stitch_tools.storage.locks import FileLock

TASK = Task(name="model", files=(), main="model.py")
PYTHON = Interpreter("python3", "3.11.0", "2.13.0", "own")

REFERENCE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(8, 4)]
"""


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from stitch_mcp.cli import main; raise SystemExit(main())", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_list_tells_the_reason_without_the_verdict_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begin_run(Workbench(Workspace(tmp_path), PYTHON), TASK, coder=OUTSIDE)
    message = "correct, inconclusive (partial): 1.00x eager; noisy"
    run.record(
        RunFinished(
            status="accepted",
            outcome="inconclusive",
            message=message,
            reason="1.00x eager; noisy",
            flags=("partial",),
            counts=False,
        )
    )
    run.close()
    assert main(["runs", "list", "--workspace", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"accepted \(partial, does not count\) +inconclusive +0 +1.00x eager; noisy$", shown, re.M
    )
    assert "correct" not in shown


@pytest.mark.parametrize(("coder", "state"), [(OUTSIDE, "analyzed only"), ("stitcher", "interrupted")])
def test_a_run_that_waits_for_an_agent_is_not_called_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], coder: str, state: str
) -> None:
    begin_run(Workbench(Workspace(tmp_path), PYTHON), TASK, coder=coder).close()
    assert main(["runs", "list", "--workspace", str(tmp_path)]) == 0
    assert f"  {state}  " in capsys.readouterr().out


def test_a_failed_run_says_where_and_why_and_not_to_resume_what_cannot_be_stitched(tmp_path: Path) -> None:
    opaque = REFERENCE.replace("self.norm(x)", "x * x.sum().item()")
    (tmp_path / "model.py").write_text(opaque, encoding="utf-8")
    done = call(tmp_path, "solve", "model.py")
    assert done.returncode == 3, done.stderr
    (row,) = json.loads(call(tmp_path, "runs", "list", "--json").stdout)["runs"]
    assert row["status"] == "failed"
    assert "graph of operations" in row["message"]
    log = tmp_path / ".stitch" / "runs" / row["run_id"] / "events.jsonl"
    with FileLock(lock_path(log)):
        assert " running " in call(tmp_path, "runs", "list").stdout
        assert "running: a process works on it now" in call(tmp_path, "runs", "show", "last").stdout
    assert " failed " in call(tmp_path, "runs", "list").stdout
    shown = call(tmp_path, "runs", "show", "last").stdout
    assert "failed at the step 'program'" in shown
    assert "write such a place with torch.where" in shown
    # The run keeps its reference, for which there is no template: going on with it would end in the same way.
    assert "solve --resume" not in shown
    assert "resuming it cannot help" in shown
    assert "check REF PROGRAM" in shown


def test_a_run_that_goes_on_has_no_certificate_yet(tmp_path: Path) -> None:
    run = begin_run(Workbench(Workspace(tmp_path), PYTHON), TASK, coder="stitcher")
    try:
        with pytest.raises(UsageError, match=rf"it is running, process {os.getpid()} on ") as caught:
            export_certificate(tmp_path, "last", None)
        assert "wait" in caught.value.hint
    finally:
        run.close()
    with pytest.raises(UsageError, match="not finished") as caught:
        export_certificate(tmp_path, "last", None)
    assert [row.tool for row in caught.value.remedies] == ["solve"]


def test_an_open_run_says_what_solve_does_with_its_rejected_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begin_run(Workbench(Workspace(tmp_path), PYTHON), TASK, coder=OUTSIDE)
    files = run.store.put_files({"program.cpp": b"int x;"})
    wrong = Program(format="native", target="cpu", files=files, main="program.cpp")
    judged = Check(program_id=wrong.program_id, task_id=TASK.task_id, status="incorrect")
    record_check(run, wrong, judged)
    run.close()
    assert main(["runs", "show", "last", "--workspace", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "its newest program is incorrect and does not count; continue with: " in shown
    assert "one that the stitcher writes" in shown


def test_a_run_that_failed_for_a_reason_that_can_be_mended_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(REFERENCE.replace("self.norm(x)", "[][0]"), encoding="utf-8")
    assert call(tmp_path, "solve", "model.py").returncode != 0
    shown = call(tmp_path, "runs", "show", "last").stdout
    assert "failed at the step 'reference'" in shown
    assert "solve --resume " in shown


def test_a_workspace_that_is_not_there_is_not_called_empty(tmp_path: Path) -> None:
    done = call(tmp_path, "runs", "list", "--workspace", "absent")
    assert done.stdout.startswith(f"there is no folder {tmp_path / 'absent'};")
    assert call(tmp_path, "runs", "list").stdout.startswith("no runs yet in ")


def test_a_run_that_waits_for_a_person_shows_where_to_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begin_run(Workbench(Workspace(tmp_path), PYTHON), TASK, coder="manual")
    run.record(ModelAsked(call=0, request="0" * 64, model="manual", most_tokens=0))
    answer = run.folder / "calls/000/answer.md"
    assert main(["runs", "show", "--workspace", str(tmp_path)]) == 0
    assert f"waiting for {answer}" in capsys.readouterr().out
    run.record(ModelAnswered(call=0, answer="0" * 64, tokens=0))
    run.close()
    assert main(["runs", "show", "--workspace", str(tmp_path)]) == 0
    assert "waiting for" not in capsys.readouterr().out
