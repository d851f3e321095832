"""`solve` on a full disk, whichever folder it holds; and what is left when there is room again."""

import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.cli_support import call

MODEL = Path(__file__).parents[1] / "tools" / "programs" / "linear_relu.py"
VARIABLES = {"workspace": "STITCH_WORKSPACE", "cache": "STITCH_CACHE_DIR", "scratch": "TMPDIR"}


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Folders for workspace, cache and scratch of one solve; a small reference lies beside them."""
    made = {name: tmp_path / name for name in VARIABLES}
    for folder in made.values():
        folder.mkdir()
    shutil.copy(MODEL, tmp_path / "model.py")
    return made


@pytest.fixture
def disk(folders: dict[str, Path], request: pytest.FixtureRequest) -> Generator[Path]:
    """One of the folders (`request.param`: its name and the bytes of room) as a file system of its own."""
    name, size = request.param
    folder = folders[name]
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("not measured: this user cannot mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def printed(folders: dict[str, Path], *arguments: str) -> dict[str, Any]:
    """The one object that a command prints with these folders."""
    places = {VARIABLES[name]: str(folder) for name, folder in folders.items()}
    _, found = call(folders["workspace"].parent, *arguments, env={**os.environ, **places})
    return found


def unfinished(folders: dict[str, Path]) -> list[Path]:
    """Temporary and empty files that a write left behind, and scratch folders without an owner."""
    found = [path for path in folders["workspace"].rglob("*") if path.is_file() and not path.stat().st_size]
    found += [path for folder in folders.values() for path in folder.rglob(".tmp-*")]
    found += [path for path in folders["scratch"].iterdir() if path.is_dir()]
    found += folders["cache"].glob("programs/work/*")
    return [path for path in found if path.suffix != ".lock"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("disk", "option"),
    [
        # Enough for the first steps, too little for the program's files.
        pytest.param(("workspace", 128 << 10), "--workspace", id="workspace", marks=pytest.mark.exhaustive),
        # Too little for the compiler's files: the probe of the ceilings, or the program.
        pytest.param(
            ("cache", 16 << 10), "STITCH_CACHE_DIR", id="cache: probe", marks=pytest.mark.exhaustive
        ),
        pytest.param(
            ("cache", 256 << 10), "STITCH_CACHE_DIR", id="cache: program", marks=pytest.mark.exhaustive
        ),
        # Enough for the lock and the reference's file, not for a second copy of it beside a baseline's.
        pytest.param(("scratch", 8 << 10), "TMPDIR", id="scratch", marks=pytest.mark.exhaustive),
    ],
    indirect=["disk"],
)
def test_a_full_disk_stops_the_run_with_the_way_out_and_with_room_it_goes_on(
    disk: Path, option: str, folders: dict[str, Path]
) -> None:
    found = printed(folders, "solve", "model.py", "--quick")
    error = found["error"]
    assert (found["exit_code"], error["code"]) == (5, "store"), error
    assert "No space left on device" in error["message"]
    assert str(disk) in error["message"]
    assert option in error["hint"]
    assert unfinished(folders) == []
    subprocess.run(["mount", "-o", "remount,size=256m", disk], check=True)
    run_id = error["hint"].rsplit(" ", 1)[-1]
    again = printed(folders, "solve", "--resume", run_id)
    assert again["ok"], again
    assert (again["status"], again["run_id"]) == ("accepted", run_id)


@pytest.mark.parametrize("disk", [("workspace", 4 << 10)], indirect=True)
def test_a_disk_without_any_room_is_named_before_a_run_begins(disk: Path, folders: dict[str, Path]) -> None:
    found = printed(folders, "solve", "model.py", "--quick")
    error = found["error"]
    assert (found["exit_code"], error["code"]) == (5, "store"), error
    assert "--workspace" in error["hint"]
    assert unfinished(folders) == []
    assert printed(folders, "runs", "list")["runs"] == []
