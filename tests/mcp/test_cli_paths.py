"""`solve`, `certify` and `check` where every path has spaces and letters beyond ASCII."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODEL = Path(__file__).parents[1] / "tools" / "programs" / "linear_relu.py"
PREFIX = [sys.executable, "-c", "from stitch_mcp.cli import main; raise SystemExit(main())"]

pytestmark = pytest.mark.slow


def call(folder: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """The one object that a command prints."""
    done = subprocess.run(
        [*PREFIX, *arguments, "--json"],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=500,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode, done.stderr
    return found


def test_paths_with_spaces_and_unicode_lead_from_reference_to_certificate(tmp_path: Path) -> None:
    folder = tmp_path / 'meine Ordner — 模型\'s "x" $HOME;#%'
    for name in ("wörk späce", "çache 快", "scratch ü"):
        (folder / name).mkdir(parents=True)
    reference = folder / "mödel 1 — ünïcode's.py"
    shutil.copy(MODEL, reference)
    variables = {"STITCH_CACHE_DIR": str(folder / "çache 快"), "TMPDIR": str(folder / "scratch ü")}
    workspace = ("--workspace", str(folder / "wörk späce"))
    found = call(folder, "solve", reference.name, "--quick", *workspace, **variables)
    assert found["ok"], found
    certificate = Path(found["certificate"])
    assert certificate.is_relative_to(folder / "wörk späce")
    assert call(folder, "certify", "--verify", str(certificate), **variables)["ok"]
    assert call(folder, "check", reference.name, str(certificate), *workspace, **variables)["ok"]
