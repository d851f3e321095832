"""`solve FOLDER`: one run a reference, whatever becomes of the others."""

import os
import signal
import subprocess
from pathlib import Path

from stitch_planner.runs.run import Workspace
from tests.mcp.cli_support import COMMAND, call

REFERENCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.{function}(x)


def get_inputs():
    return [torch.randn(16, 32)]
"""


def tasks_in(folder: Path, **functions: str) -> Path:
    folder.mkdir()
    for name, function in functions.items():
        (folder / f"{name}.py").write_text(REFERENCE.format(function=function), encoding="utf-8")
    return folder


def test_a_folder_is_solved_task_by_task_and_only_what_is_left_the_next_time(tmp_path: Path) -> None:
    folder = tasks_in(tmp_path / "tasks", a_relu="relu", c_tanh="tanh")
    (folder / "b_broken.py").write_text("import nothing_like_this\n", encoding="utf-8")
    env = {**os.environ, "STITCH_BENCH_BUDGET_S": "0.000001"}
    code, printed = call(tmp_path, "solve", "tasks", "--quick", env=env)
    assert code == 3
    rows = printed["tasks"]
    assert [row["reference"] for row in rows] == ["a_relu.py", "b_broken.py", "c_tanh.py"]
    assert [row["ended"] for row in rows] == ["solved", "failed", "solved"]
    assert [row["counts"] for row in rows] == [True, False, True]
    assert "has no `Model`" in rows[1]["message"]
    before = len(Workspace(tmp_path).run_ids())
    (folder / "b_broken.py").unlink()
    code, printed = call(tmp_path, "solve", "tasks", "--quick", env=env)
    assert code == 0
    assert [row["ended"] for row in printed["tasks"]] == ["known", "known"]
    assert [row["run_id"] for row in printed["tasks"]] == [rows[0]["run_id"], rows[2]["run_id"]]
    assert len(Workspace(tmp_path).run_ids()) == before


def test_an_interrupt_ends_the_task_at_work_and_the_summary_names_the_rest(tmp_path: Path) -> None:
    tasks_in(tmp_path / "tasks", a="relu", b="tanh")
    with subprocess.Popen(
        [*COMMAND, "solve", "tasks", "--quick"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "1 of 2: a.py" in process.stderr.readline()
        assert process.stderr.readline(), "the run has begun"
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "0 of 2 references" in out
    assert "interrupted" in out
    assert "not_started" in out


def test_what_is_no_folder_of_references_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, printed = call(tmp_path, "solve", "empty")
    assert code == 2
    assert "holds no *.py file" in printed["error"]["message"]
    tasks_in(tmp_path / "tasks", a="relu")
    assert call(tmp_path, "solve", "tasks", "--inputs", "other")[0] == 2
    assert call(tmp_path, "solve", "tasks/a.py", "--again")[0] == 2
