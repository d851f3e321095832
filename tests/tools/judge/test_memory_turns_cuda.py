"""Checks side by side on one GPU give the verdicts of checks one after another, whoever holds its memory."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.device_memory import read_gpu
from stitch_tools.machine.devices import find_gpus
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Check
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import make_task, model_new

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.whole_gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured"),
]
GIB = 1 << 30
MODEL = """import torch
from torch import nn


class {name}(nn.Module):
    def forward(self, x):
        return (x * {factor}).sum(-1)
"""
INPUTS = """

def get_inputs():
    return [torch.randn({rows}, 1 << 20)]


def get_init_inputs():
    return []
"""
SHORT = CheckOptions(trace=False, structured=False, batch_probe=False, order_one_weights=False)


@contextmanager
def ballast(left_bytes: int) -> Generator[None]:
    """The GPU with this much free: the rest is a stranger's, as far as the judge can see."""
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - left_bytes), dtype=torch.uint8, device="cuda")
    yield
    del held
    torch.cuda.empty_cache()


@pytest.fixture
def session(tmp_path: Path) -> Generator[TargetSession]:
    with TargetSession(find_interpreter(None, tmp_path), scratch_root=tmp_path / "scratch") as session:
        yield session


def tenth_of_the_gpu(store: Store) -> Task:
    """Inputs of a tenth of all memory: six checks at once need more than there is."""
    rows = torch.cuda.mem_get_info()[1] // (10 * (4 << 20))
    return make_task(
        store, MODEL.format(name="Model", factor=2.0) + INPUTS.format(rows=rows), target="cuda:sm_90"
    )


def judged(session: TargetSession, store: Store, task: Task, factor: float) -> Check:
    program = model_new(store, MODEL.format(name="ModelNew", factor=factor))
    program = program.model_copy(update={"target": "cuda:sm_90"})
    with ReferenceServer(session, task, store) as server:
        facts = server.observe()
    trial = Trial(task=task, program=program, build=None, session=session, store=store, facts=facts)
    return check_program(trial, SHORT)


def test_the_driver_says_how_much_is_free_without_a_context() -> None:
    free, total = torch.cuda.mem_get_info()
    reading = read_gpu(find_gpus().gpus[0])
    assert abs(reading.free_bytes - free) < GIB
    assert abs(reading.total_bytes - total) < GIB


def test_six_checks_side_by_side_have_the_verdicts_of_six_in_turn(
    session: TargetSession, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    task = tenth_of_the_gpu(store)
    factors = (2.0, 2.1) * 3
    in_turn = [judged(session, store, task, factor) for factor in factors[:2]]
    with ThreadPoolExecutor(6) as pool:
        beside = list(pool.map(lambda factor: judged(session, store, task, factor), factors))
    assert [row.status for row in in_turn] == ["accepted", "incorrect"]
    assert [(row.status, row.oracle) for row in beside] == [(row.status, row.oracle) for row in in_turn * 3]


def test_memory_that_a_stranger_holds_is_never_the_programs_fault(
    session: TargetSession, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    task = make_task(
        store, MODEL.format(name="Model", factor=2.0) + INPUTS.format(rows=8), target="cuda:sm_90"
    )
    hog = MODEL.format(name="ModelNew", factor=2.0).replace(
        "return", "torch.empty(8 << 30, dtype=torch.uint8, device=x.device)\n        return"
    )
    program = model_new(store, hog).model_copy(update={"target": "cuda:sm_90"})
    with ReferenceServer(session, task, store) as server:
        facts = server.observe()
    trial = Trial(task=task, program=program, build=None, session=session, store=store, facts=facts)
    with ballast(6 * GIB):
        check = check_program(trial, SHORT)
    assert check.status == "unmeasured", check.message
    assert "processes that are not ours hold" in check.message
    assert check_program(trial, SHORT).status == "accepted"
