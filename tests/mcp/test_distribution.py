"""What a wheel and a source distribution hold; both are built from this checkout."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("stitch_mcp", "tools/stitch_tools", "planner/stitch_planner", "rag_index/stitch_rag")


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    return [name for name in listing.decode("utf-8").split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def built(tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, built from the tracked files alone."""
    pytest.importorskip("hatchling")
    source = tmp_path_factory.mktemp("source")
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "hatchling", "build", "-d", "dist"]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    return source / "dist"


def test_the_wheel_holds_every_file_of_the_packages(built: Path, tracked: list[str]) -> None:
    (wheel,) = built.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(Path(folder).name / Path(name).relative_to(folder))
        for folder in PACKAGES
        for name in tracked
        if name.startswith(f"{folder}/")
    }
    assert wanted <= held
    suffixes = {Path(name).suffix for name in wanted}
    assert {".h", ".cuh", ".cpp", ".j2", ".toml", ".typed"} <= suffixes
    assert "stitch_mcp/examples/mlp.py" in held
    others = {name.split("/")[0] for name in held - wanted}
    assert len(others) == 1, "beside the packages only what describes them"


def test_the_source_distribution_holds_what_its_tests_and_scripts_read(
    built: Path, tracked: list[str]
) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        held = {name.partition("/")[2] for name in file.getnames()}
    assert set(tracked) <= held
