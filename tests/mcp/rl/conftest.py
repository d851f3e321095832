"""A judge that stays open for the tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_mcp.config import configure
from stitch_mcp.rl.reward.judging import JudgeOptions, RewardJudge

BUDGET_S = "0.5"
"""For the rounds of a bench: enough for the probes that catch a cheat under the clock, on a quiet machine."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewardJudge]:
    root: Path = tmp_path_factory.mktemp("rewards")
    config = configure(
        {"workspace": root, "threads": 2, "bench_budget_s": BUDGET_S, "compile_baselines": False}
    )
    with RewardJudge(config, JudgeOptions(quick=True)) as judge:
        yield judge
