"""A sweep gives equal rows on this machine and on a Ray cluster. Needs the extra `ray`."""

import importlib.util
import os
from pathlib import Path

import pytest

from tests.mcp.cli_support import call

REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(8, 4)]

def get_init_inputs():
    return []
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_sweep_gives_equal_rows_whoever_runs_it(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "relu.py").write_text(REFERENCE, encoding="utf-8")
    opaque = REFERENCE.replace("torch.relu(x)", "x * x.sum().item()")
    (folder / "opaque.py").write_text(opaque, encoding="utf-8")
    env = {**os.environ, "STITCH_BENCH_BUDGET_S": "0.000001"}
    rows: dict[str, list[tuple[object, ...]]] = {}
    names = ("task", "exit_code", "status", "counts", "reasons", "flags", "outcome", "contract", "own_share")
    for backend in ("local", "ray"):
        given = ("--path", "tasks", "--out", backend, "--jobs", "2", "--backend", backend, "--json")
        code, printed = call(tmp_path, "suite", "folder", *given, "--", "--quick", env=env)
        assert code == 0, printed
        rows[backend] = [tuple(one[name] for name in names) for one in printed["rows"]]
    assert [(row[0], row[2]) for row in rows["local"]] == [("opaque", None), ("relu", "accepted")]
    assert rows["ray"] == rows["local"]
