"""`solve` of references whose inputs are unusual: without rows, of one row, integers, masks, strided."""

import os
from pathlib import Path

import pytest

from tests.mcp.cli_support import call

EMPTY = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 6)

    def forward(self, x):
        return torch.relu(self.linear(x)) * 2


def get_inputs():
    return [torch.randn(0, 8)]
"""
KINDS = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 6)

    def forward(self, row, counts, mask, columns, every_other):
        chosen = torch.where(mask, columns + every_other, 2 * every_other)
        return torch.relu(self.linear(row)) * 2, chosen, counts * 3 + mask, ~mask


def get_inputs():
    return [
        torch.randn(1, 8),
        torch.randint(-9, 9, (16, 8)),
        torch.rand(16, 8) < 0.5,
        torch.randn(8, 16).t(),
        torch.randn(16, 16)[:, ::2],
    ]
"""
CASES = {
    "no rows": EMPTY,
    "one row, integers, a mask, a transposed and a strided tensor": KINDS,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_unusual_inputs_are_solved(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CASES[name], encoding="utf-8")
    quiet = {**os.environ, "STITCH_LOCK_DIR": str(tmp_path)}  # any outcome will do: wait for nobody's timing
    code, found = call(tmp_path, "solve", "model.py", "--quick", "--threads", "1", env=quiet)
    assert (code, found.get("status")) == (0, "accepted"), found.get("error") or found["check"]
    assert found["outcome"] in {"faster", "slower", "inconclusive"}
    assert "weak" not in found["check"]["flags"] or name == "no rows", "only what is empty shows nothing"
    assert Path(found["certificate"]).is_file()
