"""One solved run, which tests that look at a finished run copy."""

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stitch_tools.storage.locks import FileLock
from tests.mcp.cli_support import call

PROGRAMS = Path(__file__).parents[1] / "tools" / "programs"


class SolvedRun(NamedTuple):
    """A workspace with one finished run."""

    workspace: Path
    """To be copied: other runs in it would confuse other tests."""
    result: dict[str, Any]
    """What `solve` printed."""


def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder that all processes of this test run have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def solved_run(tmp_path_factory: pytest.TempPathFactory) -> SolvedRun:
    """One small reference, solved: once for all processes of a test run."""
    root = run_folder(tmp_path_factory)
    folder, printed = root / "solved" / "work space", root / "solved" / "printed.json"
    lock = FileLock(root / "solved.lock", purpose="solves the run that tests look at")
    lock.acquire(wait_s=600)
    with lock:
        if not printed.exists():
            # Half a run of a process that was killed is no run.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            shutil.copy(PROGRAMS / "linear_relu.py", folder / "model.py")
            # The one run of the suite that has torch.compile beside it, as runs of users have.
            compiling = {**os.environ, "STITCH_COMPILE_BASELINES": "true"}
            code, found = call(folder, "solve", "model.py", "--quick", env=compiling)
            assert code == 0, found
            printed.write_text(json.dumps(found), encoding="utf-8")
    return SolvedRun(folder, json.loads(printed.read_text(encoding="utf-8")))
