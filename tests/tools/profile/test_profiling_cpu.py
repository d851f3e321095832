"""References and programs are profiled here by PyTorch's profiler; what fails there is a status."""

import tempfile
import time
from pathlib import Path

import pytest

from stitch_tools.judge.trial import Trial
from stitch_tools.models.profile import Profile
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Check
from stitch_tools.profile.profile_work import KnownFacts, ProfileOptions
from stitch_tools.profile.profiling import profile_program, profile_reference
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import AFFINE, AFFINE_NEW, affine_program, build, make_task, model_new

UNEVEN = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heavy = torch.nn.Linear(768, 768)
        self.light = torch.nn.ReLU()

    def forward(self, x):
        for _ in range(3):
            x = self.heavy(x)
        return self.light(x)

def get_inputs():
    return [torch.randn(512, 768)]
"""
"""Nearly all of its time is in one module."""
FAILING = AFFINE.replace("return x * 2.0 + 1.0", "raise ValueError('no such shape')")
SLOW = AFFINE.replace("return x * 2.0 + 1.0", "import time; time.sleep(30); return x")
DYING = AFFINE.replace("return x * 2.0 + 1.0", "import os; os.abort()")


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process of this machine is waited for, nor does one wait for us."""
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))


def reference_profile(session: TargetSession, store: Store, source: str, **options: float) -> Profile:
    task = make_task(store, source, **({} if "get_init_inputs" in source else {"init_inputs": None}))
    return profile_reference(
        session, task, store, options=ProfileOptions(limit_s=options.get("limit_s", 100.0))
    )


def test_a_reference_is_profiled_by_operator_and_module_and_leaves_nothing_on_the_disk(
    one_thread: TargetSession, tmp_path: Path
) -> None:
    before = set(Path(tempfile.gettempdir()).glob("stitch-profile*"))
    profile = reference_profile(one_thread, Store(tmp_path / "store"), UNEVEN)
    assert profile.status == "profiled", profile.message
    assert [tool.name for tool in profile.tools] == ["torch.profiler"]
    assert profile.isolation == one_thread.sandbox_level
    system = profile.system
    assert system is not None
    assert system.untraced_us is not None
    first = system.kernels[0]
    assert (first.name, first.module, first.count) == ("aten::addmm", "heavy", 3.0)
    assert first.share > 0.5
    modules = {row.path: row for row in system.modules}
    assert modules["heavy"].calls == 3
    assert modules["heavy"].type == "Linear"
    assert modules["heavy"].host_us > modules["light"].host_us
    assert profile.diagnosis is not None
    assert profile.diagnosis.bottlenecks
    assert any("not captured" in row for row in profile.not_measured)
    assert set(Path(tempfile.gettempdir()).glob("stitch-profile*")) <= before


def test_what_fails_under_the_profiler_is_a_status(one_thread: TargetSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    failing = reference_profile(one_thread, store, FAILING)
    assert (failing.status, "no such shape" in failing.message) == ("crashed", True)
    assert reference_profile(one_thread, store, DYING).status == "crashed"
    start = time.monotonic()
    assert reference_profile(one_thread, store, SLOW, limit_s=8.0).status == "timed_out"
    assert time.monotonic() - start < 60


def trial_of(
    session: TargetSession, store: Store, task: Task, reference: ReferenceServer, native: bool
) -> Trial:
    program = affine_program(store) if native else model_new(store, AFFINE_NEW)
    return Trial(
        task=task,
        program=program,
        build=build(program, store) if native else None,
        session=session,
        store=store,
        facts=reference.observe(),
        reference=reference,
    )


def check_of(trial: Trial, status: str) -> Check:
    return Check.model_validate(
        {"program_id": trial.program.program_id, "task_id": trial.task.task_id, "status": status}
    )


@pytest.mark.parametrize("native", [False, True], ids=["model_new", "native"])
def test_an_accepted_program_is_profiled_and_no_other(
    one_thread: TargetSession, tmp_path: Path, native: bool
) -> None:
    store = Store(tmp_path / "store")
    task = make_task(store, AFFINE)
    with ReferenceServer(one_thread, task, store) as reference:
        trial = trial_of(one_thread, store, task, reference, native)
        refused = profile_program(trial, check_of(trial, "incorrect"))
        assert (refused.status, refused.tools, refused.system) == ("not_accepted", (), None)
        other = check_of(trial, "accepted").model_copy(update={"program_id": "0" * 64})
        assert profile_program(trial, other).status == "not_accepted"
        profile = profile_program(trial, check_of(trial, "accepted"), known=KnownFacts())
        assert profile.status == "profiled", profile.message
        assert profile.subject_id == trial.program.program_id
        assert profile.system is not None
        assert profile.system.iterations >= 1
