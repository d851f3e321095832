"""One solved run, which tests that look at a finished run copy."""

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mcp.cli_support import call

PROGRAMS = Path(__file__).parents[1] / "tools" / "programs"


class SolvedRun(NamedTuple):
    """A workspace with one finished run."""

    workspace: Path
    """To be copied: other runs in it would confuse other tests."""
    result: dict[str, Any]
    """What `solve` printed."""


@pytest.fixture(scope="session")
def solved_run(tmp_path_factory: pytest.TempPathFactory) -> SolvedRun:
    """One small reference, solved."""
    folder = tmp_path_factory.mktemp("solved") / "work space"
    folder.mkdir()
    shutil.copy(PROGRAMS / "linear_relu.py", folder / "model.py")
    # Any outcome of the timing will do: it waits for nobody else's.
    quiet = {**os.environ, "STITCH_LOCK_DIR": str(tmp_path_factory.mktemp("locks"))}
    # The one run of the suite that has torch.compile beside it, as runs of users have.
    quiet["STITCH_COMPILE_BASELINES"] = "true"
    code, found = call(folder, "solve", "model.py", "--quick", env=quiet)
    assert code == 0, found
    return SolvedRun(folder, found)
