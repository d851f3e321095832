"""`profile` on the command line: a reference, a question, two profiles side by side, and what is refused."""

import json
from pathlib import Path

import pytest

from stitch_mcp.cli import main
from tests.mcp.cli_support import call

REFERENCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(256, 256)
    def forward(self, x):
        return torch.nn.functional.gelu(self.fc(x))

def get_inputs():
    return [torch.rand(256, 256)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))
    (tmp_path / "model.py").write_text(REFERENCE, encoding="utf-8")
    return tmp_path


def test_a_reference_is_profiled_asked_and_compared(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = call(workspace, "profile", "model.py", "--threads", "1", "--charts", "charts.html")
    assert (code, found["status"]) == (0, "profiled"), found["message"]
    assert found["system"]["origin"] == "torch.profiler"
    assert {row["op"] for row in found["system"]["kernels"]} >= {"aten::addmm", "aten::gelu"}
    assert found["bounds"]["fused_us"] > 0
    page = (workspace / "charts.html").read_text(encoding="utf-8")
    assert "<svg" in page
    # The roofs, from the limits that the profile measured.
    assert "stroke-dasharray" in page

    first = workspace / "first.json"
    first.write_text(json.dumps(found), encoding="utf-8")
    assert main(["profile", "--compare", "first.json", "first.json"]) == 0
    compared = capsys.readouterr().out
    assert "(the same)" in compared
    assert len(compared.strip().splitlines()) <= 16

    code, _ = call(workspace, "profile", "model.py", "--threads", "1", "--ask", "who_did_it")
    assert code == 2
    assert main(["profile", "model.py", "--threads", "1", "--ask", "interpreter overhead"]) == 0
    answered = capsys.readouterr().out
    assert "outside of operators" in answered
    assert "Kernels and operators" not in answered


def test_a_program_that_is_wrong_is_not_profiled(workspace: Path) -> None:
    wrong = REFERENCE.replace("class Model", "class ModelNew").replace("self.fc(x)", "self.fc(x) * 1.5")
    (workspace / "wrong.py").write_text(wrong, encoding="utf-8")
    code, found = call(workspace, "profile", "model.py", "wrong.py", "--threads", "1")
    assert (code, found["status"], found["system"]) == (3, "not_accepted", None)
    assert "incorrect" in found["message"]


def test_nothing_named_is_a_wrong_use(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile"]) == 2
    assert main(["profile", "--compare", "abcdef123", "nothing.json"]) == 2
    assert "there is no profile" in capsys.readouterr().err
