"""`solve`, `certify` and `check` where every path has spaces and letters beyond ASCII."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.cli_support import call

MODEL = Path(__file__).parents[1] / "tools" / "programs" / "linear_relu.py"

pytestmark = pytest.mark.exhaustive


def printed(folder: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """The one object that a command prints."""
    _, found = call(folder, *arguments, env={**os.environ, **variables})
    return found


def test_paths_with_spaces_and_unicode_lead_from_reference_to_certificate(tmp_path: Path) -> None:
    folder = tmp_path / 'meine Ordner — 模型\'s "x" $HOME;#%'
    for name in ("wörk späce", "çache 快", "scratch ü"):
        (folder / name).mkdir(parents=True)
    reference = folder / "mödel 1 — ünïcode's.py"
    shutil.copy(MODEL, reference)
    variables = {"STITCH_CACHE_DIR": str(folder / "çache 快"), "TMPDIR": str(folder / "scratch ü")}
    workspace = ("--workspace", str(folder / "wörk späce"))
    found = printed(folder, "solve", reference.name, "--quick", *workspace, **variables)
    assert found["ok"], found
    certificate = Path(found["certificate"])
    assert certificate.is_relative_to(folder / "wörk späce")
    assert printed(folder, "certify", "--verify", str(certificate), **variables)["ok"]
    assert printed(folder, "check", reference.name, str(certificate), *workspace, **variables)["ok"]
