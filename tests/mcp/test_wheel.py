"""The built wheel holds what an install without the repository needs."""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {
    "stitch_mcp": ROOT / "stitch_mcp",
    "stitch_planner": ROOT / "planner" / "stitch_planner",
    "stitch_rag": ROOT / "rag_index" / "stitch_rag",
    "stitch_tools": ROOT / "tools" / "stitch_tools",
}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Paths inside a wheel that was built from this tree."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    code = f"from hatchling.build import build_wheel; build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_file_of_every_package(names: set[str]) -> None:
    for package, folder in SOURCES.items():
        wanted = {
            f"{package}/{path.relative_to(folder).as_posix()}"
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert wanted <= names, sorted(wanted - names)


def test_the_wheel_holds_headers_runner_and_example(names: set[str]) -> None:
    assert "stitch_tools/native/include/stitch/abi.h" in names
    assert "stitch_tools/native/src/runner.c" in names
    assert "stitch_mcp/examples/mlp.py" in names
    assert any(name.startswith("stitch_planner/stitcher/native/include/stitch/cpu/") for name in names)


def test_the_wheel_claims_no_name_but_ours(names: set[str]) -> None:
    roots = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert roots == set(SOURCES)
