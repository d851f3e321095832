"""`runs list` and `runs show` of a run that did not reach its end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stitch_mcp.cli.runs import reason_of
from stitch_tools.events import lock_path
from stitch_tools.locks import FileLock

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


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("incorrect: draw own-1: output 0: too far", "draw own-1: output 0: too far"),
        ("correct, inconclusive (partial, weak): 1.00x eager; noisy", "1.00x eager; noisy (partial, weak)"),
        ("correct but slower: 0.50x eager", "0.50x eager"),
        ("model.py:5: no such name", "model.py:5: no such name"),
    ],
)
def test_a_list_tells_the_reason_without_the_verdict_before_it(message: str, shown: str) -> None:
    assert reason_of(message) == shown


def test_a_failed_run_says_where_and_why_and_not_to_resume_what_cannot_be_stitched(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(REFERENCE, encoding="utf-8")
    contract = ("--set", "mode=train", "--set", "buffers=updated")
    done = call(tmp_path, "solve", "model.py", "--target", "cuda:sm_90", *contract)
    assert done.returncode == 3, done.stderr
    (row,) = json.loads(call(tmp_path, "runs", "list", "--json").stdout)["runs"]
    assert row["status"] == "failed"
    assert "updated buffers" in row["message"]
    log = tmp_path / ".stitch" / "runs" / row["run_id"] / "events.jsonl"
    with FileLock(lock_path(log)):
        assert " running " in call(tmp_path, "runs", "list").stdout
        assert "running: a process works on it now" in call(tmp_path, "runs", "show", "last").stdout
    assert " failed " in call(tmp_path, "runs", "list").stdout
    shown = call(tmp_path, "runs", "show", "last").stdout
    assert "failed at the step 'graph'" in shown
    assert "Write a ModelNew that updates them" in shown
    assert "--resume" not in shown


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
