"""`solve` as a user runs it where the environment is at fault: disk read-only, interpreter without torch."""

import shutil
import subprocess
import venv
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.cli_support import call

MODEL = Path(__file__).parents[1] / "tools" / "programs" / "linear_relu.py"


def failure(folder: Path, *arguments: str) -> dict[str, Any]:
    """The error of a solve that the environment stops; stdout is one JSON object."""
    code, found = call(folder, "solve", "model.py", "--quick", *arguments)
    assert code == 5, found
    error: dict[str, Any] = found["error"]
    return error


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Path]:
    """A mounted file system that holds a small reference."""
    folder = tmp_path / "work spâce"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("not measured: this user cannot mount a file system")
    shutil.copy(MODEL, folder / "model.py")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_read_only_workspace_is_named_with_the_way_out(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    error = failure(disk, "--workspace", str(disk))
    assert "--workspace" in error["hint"]
    assert list(disk.rglob(".tmp-*")) == []


def test_an_interpreter_without_torch_is_named_with_the_fix(tmp_path: Path) -> None:
    shutil.copy(MODEL, tmp_path / "model.py")
    venv.create(tmp_path / "bare", with_pip=False)
    error = failure(tmp_path, "--python", str(tmp_path / "bare"))
    assert error["code"] == "environment"
    assert "torch" in error["hint"]
