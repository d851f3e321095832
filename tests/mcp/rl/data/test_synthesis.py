"""Sampled tasks, near duplicates, filters, the curriculum."""

import random
from pathlib import Path

import pytest

from stitch_mcp.config import configure
from stitch_mcp.rl.data.curriculum import WINDOW, draw_level, level_shares, next_level
from stitch_mcp.rl.data.near_duplicates import Known, fingerprint, read_fingerprints
from stitch_mcp.rl.data.operations import OPERATIONS
from stitch_mcp.rl.data.sampling import OP_MIX, sample_task
from stitch_mcp.rl.data.synthesis import synthesize
from stitch_mcp.rl.data.task_filter import TaskFilter
from stitch_tools.errors import UsageError

GELU_NORM = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
    def forward(self, a):
        b = torch.nn.functional.gelu(a)
        return self.norm(b)
"""
SAME_OTHERWISE = """
from torch import nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.scale = nn.LayerNorm(width)
    def forward(self, x):
        return self.scale(F.gelu(x))
"""
OTHER = SAME_OTHERWISE.replace("F.gelu(x)", "F.silu(x) + x")


def test_equal_seeds_give_equal_tasks_and_the_mix_of_sizes_is_as_wanted() -> None:
    tasks = [sample_task(random.Random(seed)) for seed in range(400)]
    assert tasks[:20] == [sample_task(random.Random(seed)) for seed in range(20)]
    lengths = [len(task.nodes) for task in tasks]
    assert set(lengths) == set(OP_MIX)
    assert {task.level for task in tasks} == {1, 2, 3}
    assert len({name for task in tasks for name in task.operations}) > 0.9 * len(OPERATIONS)


def test_every_operation_computes_the_shape_that_the_sampler_promises() -> None:
    torch = pytest.importorskip("torch")
    seen: set[str] = set()
    rng = random.Random(7)
    for _ in range(70):
        task = sample_task(rng)
        names: dict[str, object] = {}
        exec(task.source, names)  # our own text
        model, inputs = names["Model"](), names["get_inputs"]()  # pyright: ignore[reportCallIssue, reportGeneralTypeIssues]
        with torch.no_grad():
            assert tuple(model(*inputs).shape) == task.nodes[-1].shape
        seen |= set(task.operations)
    assert len(seen) > 25


def test_near_duplicates_are_found_by_what_is_called_whatever_it_is_named() -> None:
    known = Known([fingerprint(GELU_NORM, "benchmark")])
    assert fingerprint(GELU_NORM, "a").calls == ("gelu", "layer_norm")
    assert known.near(fingerprint(SAME_OTHERWISE, "b")) == "benchmark"
    assert known.near(fingerprint(OTHER, "c")) is None


def test_a_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def (", encoding="utf-8")
    with pytest.raises(UsageError, match="is not Python"):
        read_fingerprints([tmp_path])


def test_filters_keep_what_can_be_trained_on_and_count_the_rest(tmp_path: Path) -> None:
    config = configure({"workspace": str(tmp_path), "threads": 1, "target": "cpu"})
    benchmark = fingerprint(sample_task(random.Random(5)).source, "known/benchmark")
    progress: list[tuple[int, int]] = []
    with TaskFilter(config, tmp_path, [benchmark]) as kept:
        report = synthesize(kept, 3, 5, most_tries=40, emit=lambda *row: progress.append(row))
    assert report.accepted == 3
    assert report.rejected["near_benchmark"] >= 1
    assert report.sampled == 3 + sum(report.rejected.values())
    assert "~ known/benchmark" in report.near_benchmark[0]
    assert len(list((tmp_path / "sources").glob("*.py"))) == 3
    assert progress[-1] == (3, report.sampled)


def test_the_curriculum_rises_when_a_level_is_solved_and_falls_when_nothing_is() -> None:
    assert next_level(1, [True] * (WINDOW - 1)) == 1
    assert next_level(1, [True] * WINDOW) == 2
    assert next_level(3, [True] * WINDOW) == 3
    assert next_level(2, [False] * WINDOW) == 1
    assert next_level(2, [True, False] * WINDOW) == 2


def test_earlier_levels_stay_in_the_mix() -> None:
    for level in (1, 2, 3):
        shares = level_shares(level)
        assert abs(sum(shares.values()) - 1) < 1e-9
        assert max(shares, key=lambda row: shares[row]) == level
        assert set(range(1, level)) <= set(shares)
    assert {draw_level(2, random.Random(seed)) for seed in range(60)} == {1, 2, 3}
