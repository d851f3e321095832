"""Outputs of the timed calls are compared afterwards, where that can be done."""

from pathlib import Path

import pytest

from stitch_tools.judge.timing import BenchOptions, benchmark_program
from stitch_tools.judge.timing.visits import TimingRules
from stitch_tools.judge.trial import Trial
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import make_task, model_new

IN_PLACE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x.mul_(0.5) + 1.0

def get_inputs():
    return [torch.randn(8, 32)]

def get_init_inputs():
    return []
"""
RULES = TimingRules(min_rounds=10, max_rounds=10, blocks_per_visit=1, ignore_others=True)


def test_a_reference_that_writes_its_inputs_is_timed_and_its_outputs_are_not_compared_again(
    one_thread: TargetSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))
    store = Store(tmp_path / "store")
    task = make_task(store, IN_PLACE)
    program = model_new(store, IN_PLACE.replace("Model(", "ModelNew("))
    with ReferenceServer(one_thread, task, store) as reference:
        facts = reference.observe()
    bench = benchmark_program(
        Trial(task=task, program=program, build=None, session=one_thread, store=store, facts=facts),
        BenchOptions(
            baselines=("eager",), rules=RULES, budget_s=10.0, max_slots=1024, cache_dir=tmp_path / "cache"
        ),
    )
    assert bench.outcome != "unmeasured"
    assert "inputs changed with every call" in bench.message
