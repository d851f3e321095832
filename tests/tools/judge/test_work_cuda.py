"""Who did the work on a GPU: kernels by caller, in graphs too, and launches counted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import checked
from tests.tools.work_cases import CASES, WorkCase

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured"),
]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSession]:
    root = tmp_path_factory.mktemp("work-cuda")
    with TargetSession(find_interpreter(None, root), scratch_root=root / "scratch") as session:
        yield session


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if case.slow else (), id=case.name) for case in CASES],
)
def test_the_work_is_told_apart_by_caller(case: WorkCase, session: TargetSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    task, program = case.task(store), case.program(store)
    options = CheckOptions(static=False, structured=False, batch_probe=False)
    check = checked(session, store, task, program, options)
    assert case.problems(check) == []
    if case.native:
        assert check.work is not None
        assert any("never_launched" in name for name in check.work.never_launched)
