"""A program in Python gets its weights where the reference has them: in a class, in an object, or nowhere."""

from dataclasses import replace
from pathlib import Path

import pytest

from stitch_planner.planning import try_plan
from stitch_planner.stitcher import StitchFailedError
from stitch_tools.graph import capture_graph
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.task.references import load_task
from tests.planner.judge_support import SHORT, judged
from tests.sampling import sampled

TEXT = """
import torch
from torch import nn
import sizes


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(sizes.WIDTH))
        self.norm = nn.BatchNorm1d(sizes.WIDTH)

    def forward(self, x, more=None, times=2):
        y = torch.relu(self.norm(x) * self.scale) + 1
        if more is not None:
            y = y + more["shift"][0]
        return y.repeat_interleave(times, dim=0)


net = Net()


def function(x, more=None, times=2):
    return torch.relu(x * 2).repeat_interleave(times, dim=0)


def get_inputs():
    return [torch.randn(6, sizes.WIDTH)]


def nested():
    return [torch.randn(6, sizes.WIDTH), {"shift": [torch.randn(6, sizes.WIDTH)]}, 3]


def named():
    return {"x": torch.randn(6, sizes.WIDTH), "times": 3, "more": {"shift": [torch.randn(6, sizes.WIDTH)]}}


def get_init_inputs():
    return []
"""
WORKING = [
    ("Net", "nested"),
    ("net", "get_inputs"),
    ("net", "named"),
    ("function", "get_inputs"),
    ("function", "named"),
]


def task_file(folder: Path, entry: str, inputs: str, text: str = TEXT, more: str = "") -> Path:
    """A task over a file that Python could not import by name, and a file beside it."""
    (folder / "1_the-model.py").write_text(text, encoding="utf-8")
    (folder / "sizes.py").write_text("WIDTH = 8\n", encoding="utf-8")
    path = folder / "task.toml"
    lines = ['reference = "1_the-model.py"', f'entry = "{entry}"', f'inputs = "{inputs}"', more]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "inputs"), sampled(WORKING, 3))
def test_whatever_an_entry_is_it_gets_a_partial_program(
    entry: str, inputs: str, session: TargetSession, tmp_path: Path
) -> None:
    path = task_file(tmp_path, entry, inputs)
    found = judged(path, session, Store(tmp_path / "store"), replace(SHORT, batch_probe=True))
    assert found.stitched.format == "kernelbench"
    assert found.check.status == "accepted", found.check.message
    assert {"partial", "specialized"} <= set(found.check.flags)
    assert "weights_not_reloadable" not in {row.rule for row in found.check.findings}


@pytest.mark.slow
def test_buffers_of_an_object_are_written_where_they_are_compared(
    session: TargetSession, tmp_path: Path
) -> None:
    path = task_file(tmp_path, "net", "get_inputs")
    check = judged(path, session, Store(tmp_path / "store"), overrides={"buffers": "updated"}).check
    assert check.status == "accepted", check.message


@pytest.mark.slow
def test_the_plan_says_why_no_program_can_be_written(session: TargetSession, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = task_file(tmp_path, "net", "get_inputs", more='search_path = ["elsewhere"]')
    store = Store(tmp_path / "store")
    task = load_task(str(path), workspace=tmp_path, store=store)
    with ReferenceServer(session, task, store) as server:
        facts = server.observe()
        plan = try_plan(capture_graph(server.child, task, facts, None), facts, task, None)
    assert "search_path" in plan.notes[-1]
    assert plan.notes[-1].startswith("no program can be written")
    with pytest.raises(StitchFailedError, match="search_path"):
        judged(path, session, store)
