"""Outputs in a dict belong together by their keys, in whatever order a program puts them in."""

from pathlib import Path

import pytest

from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.timing import BenchOptions, benchmark_program
from stitch_tools.judge.timing.visits import TimingRules
from stitch_tools.judge.trial import Trial
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import make_task, model_new

REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {"sums": x.sum(-1), "most": x.amax(-1), "places": x.argmax(-1)}

def get_inputs():
    return [torch.randn(64, 100)]

def get_init_inputs():
    return []
"""
OTHER_ORDER = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return {"places": x.argmax(-1), "most": x.amax(-1), "sums": x.sum(-1)}
"""
RULES = TimingRules(min_rounds=10, max_rounds=10, blocks_per_visit=1, ignore_others=True)


@pytest.fixture(scope="module")
def session(one_thread: TargetSession) -> TargetSession:
    return one_thread


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def observed(session: TargetSession, store: Store, task: Task) -> ReferenceFacts:
    with ReferenceServer(session, task, store) as reference:
        return reference.observe()


def test_whose_work_it_is_is_seen_in_any_order(session: TargetSession, store: Store) -> None:
    task, program = make_task(store, REFERENCE), model_new(store, OTHER_ORDER)
    facts = observed(session, store, task)
    checked = check_program(
        Trial(task=task, program=program, build=None, session=session, store=store, facts=facts),
        CheckOptions(),
    )
    assert checked.status == "accepted"
    assert "partial" in checked.flags
    assert "untraceable" not in {finding.rule for finding in checked.findings}


def test_outputs_of_timed_calls_are_compared_by_their_keys(
    session: TargetSession, store: Store, tmp_path: Path
) -> None:
    task, program = make_task(store, REFERENCE), model_new(store, OTHER_ORDER)
    facts = observed(session, store, task)
    options = BenchOptions(
        baselines=("eager",), rules=RULES, budget_s=10.0, max_slots=1024, cache_dir=tmp_path / "cache"
    )
    bench = benchmark_program(
        Trial(task=task, program=program, build=None, session=session, store=store, facts=facts), options
    )
    assert bench.outcome != "unmeasured", bench.message
    assert "another result" not in bench.message
