"""The last line of `scripts/check` says what was not looked at."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ("python", "ruff", "lint-imports", "pyright", "clang-format")


def run_check(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`scripts/check --static` with tools that find nothing, where there is no node."""
    programs = folder / "venv" / "bin"
    programs.mkdir(parents=True)
    for name in TOOLS:
        (programs / name).symlink_to(shutil.which("true") or "/bin/true")
    path = folder / "bin"
    path.mkdir()
    for name in ("bash", "dirname", "env", "git"):
        (path / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    return subprocess.run(
        [path / "bash", ROOT / "scripts" / "check", "--static"],
        env={"PATH": str(path), "STITCH_VENV": str(folder / "venv"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_check_that_could_not_be_made_is_named_at_the_end(tmp_path: Path) -> None:
    done = run_check(tmp_path)
    last = done.stdout.splitlines()[-1]
    assert (done.returncode, last) == (
        0,
        "check: passed, except for what was not checked: pyright (node is missing)",
    )


def test_in_ci_it_is_a_failure(tmp_path: Path) -> None:
    done = run_check(tmp_path, CI="true")
    assert (done.returncode, done.stderr) == (1, "check: failed: pyright (node is missing)\n")
