"""What a workbench observes again, and what it takes from an earlier look."""

from pathlib import Path

import pytest

from stitch_mcp.config import configure
from stitch_mcp.workbench import find_task, open_workbench
from stitch_tools.errors import UsageError

REFERENCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(8, 16)]
"""


def test_a_known_reference_is_not_observed_again_unless_torch_is_another(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(REFERENCE, encoding="utf-8")
    said: list[str] = []
    config = configure({"workspace": str(tmp_path)})
    workbench = open_workbench(config, said.append)
    task = find_task(config, workbench.workspace, tmp_path / "model.py")
    with workbench.session() as session:
        said.clear()
        with workbench.observed(session, task) as (_, facts):
            assert facts.torch_version == session.torch_version
        with workbench.observed(session, task, facts) as (server, known):
            assert known is facts
            assert server.observe().outputs == facts.outputs
        older = facts.model_copy(update={"torch_version": "2.6.0"})
        with workbench.observed(session, task, older) as (_, anew):
            assert anew.torch_version == facts.torch_version
    assert said == ["observing the reference", "loading the reference", "observing the reference"]


def test_the_time_of_a_bench_s_rounds_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STITCH_BENCH_BUDGET_S", raising=False)
    assert open_workbench(configure({"workspace": str(tmp_path)})).bench_budget_s == 60.0
    (tmp_path / "stitch.toml").write_text("bench-budget-s = 20\n", encoding="utf-8")
    assert open_workbench(configure({"workspace": str(tmp_path)})).bench_budget_s == 20.0
    monkeypatch.setenv("STITCH_BENCH_BUDGET_S", "7.5")
    assert open_workbench(configure({"workspace": str(tmp_path)})).bench_budget_s == 7.5
    monkeypatch.setenv("STITCH_BENCH_BUDGET_S", "0")
    with pytest.raises(UsageError, match="above 0"):
        configure({"workspace": str(tmp_path)})
