"""`check` with the options that state the contract and with KernelBench's rule beside ours."""

import json
from pathlib import Path
from typing import Any

import click
import pytest

from stitch_mcp.cli import main
from stitch_mcp.cli.contract import contract_overrides
from stitch_tools.errors import TaskError, UsageError

REFERENCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(64, 16)
    def forward(self, x):
        return self.fc(x)

def get_inputs():
    return [torch.rand(8, 64)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(REFERENCE, encoding="utf-8")
    rough = REFERENCE.replace("class Model", "class ModelNew").replace(
        "self.fc(x)", "self.fc(x) * (1 + 5e-5)"
    )
    (tmp_path / "rough.py").write_text(rough, encoding="utf-8")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["check", "model.py", "rough.py", *arguments])
    return code, capsys.readouterr().out


def test_formats_are_named_for_products_and_convolutions_alone_or_together() -> None:
    assert contract_overrides(None, None, None, "matmul=tf32, conv=bf16") == {
        "matmul_precision": "tf32",
        "conv_precision": "bf16",
    }
    both = {"matmul_precision": "fp16", "conv_precision": "fp16"}
    assert contract_overrides(None, None, None, "fp16") == both
    assert contract_overrides(None, None, None, "fp16,conv=fp32") == both | {"conv_precision": "fp32"}
    assert contract_overrides(None, None, None, None) == {}
    with pytest.raises(click.BadParameter, match="pool=tf32"):
        contract_overrides(None, None, None, "pool=tf32")
    with pytest.raises(UsageError, match="--allow int8: matmul_precision = 'int8'"):
        contract_overrides(None, None, None, "int8")
    with pytest.raises(UsageError, match="--rtol: rtol = -1"):
        contract_overrides(None, None, -1.0, None)


def test_ceilings_win_over_the_contract_s_file(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text("[contract]\nrtol = 1e-4\nmode = 'eval'\nvariants = [3]\n", encoding="utf-8")
    stated = contract_overrides(str(path), 0.0, 1e-2, None)
    assert stated == {"rtol": 1e-2, "atol": 0.0, "mode": "eval", "variants": ("3",)}
    with pytest.raises(TaskError, match="cannot read"):
        contract_overrides(str(tmp_path / "nowhere.toml"), None, None, None)


def test_kernelbench_s_rule_stands_beside_ours(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "--reference-tolerance")
    assert code == 3
    assert "status: incorrect" in text
    assert (
        "KernelBench: torch.allclose with the reference's output (atol 0.0001, rtol 0.0001) would accept"
        in text
    )


def test_a_program_in_python_is_announced_before_it_is_loaded(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workspace / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    assert main(["check", "model.py", "broken.py"]) == 3
    said = capsys.readouterr().err
    assert said.index("observing the reference") < said.index("loading the program (it may compile")


def test_what_the_options_loosen_is_marked_and_can_be_forbidden(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loosened = ("--json", "--allow", "matmul=tf32", "--rtol", "1e-2")
    code, text = run(capsys, *loosened)
    found: dict[str, Any] = json.loads(text)
    # It is right, and leaves all of its work to PyTorch.
    assert (code, found["status"], found["counts"]) == (3, "accepted", False), found["message"]
    assert [row["accept"] for row in found["reasons"]] == ["partial"]
    assert {"relaxed", "partial"} <= set(found["flags"])
    code, text = run(capsys, *loosened, "--accept", "partial")
    found = json.loads(text)
    assert (code, found["counts"], found["policy"]["flags"]) == (0, True, ["partial"])
    assert [row["rule"] for row in found["excused"]] == ["partial"]
    (workspace / "stitch.toml").write_text("forbid-relaxed = true\n", encoding="utf-8")
    assert run(capsys, "--json", "--allow", "tf32")[0] == 2
    code, text = run(capsys, "--json", "--rtol", "1e-4")
    assert code == 3
    assert json.loads(text)["flags"] == []
