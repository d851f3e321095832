"""Command line and API show a run of version 0.1, and verify its certificate (tests/data/run-0.1)."""

import shutil
from pathlib import Path

import pytest

from stitch_mcp.certificates import verify_certificate
from stitch_mcp.cli import main

DATA = Path(__file__).parents[1] / "data/run-0.1"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    shutil.copytree(DATA, tmp_path / ".stitch")
    return tmp_path


def test_an_old_run_is_listed_and_shown(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", "--workspace", str(workspace)]) == 0
    listed = capsys.readouterr().out
    assert "accepted" in listed
    assert "x eager, 95% interval" in listed
    assert main(["runs", "show", "--workspace", str(workspace)]) == 0
    shown = capsys.readouterr().out
    assert "program_written" in shown
    assert "best, certified" in shown


def test_an_old_certificate_is_verified_and_counts(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", "last", "--verify", "--workspace", str(workspace)]) == 0
    assert "nothing in this archive is damaged" in capsys.readouterr().out
    (archive,) = workspace.glob(".stitch/runs/*/*.stitch.zip")
    seen = verify_certificate(archive)
    assert (seen.status, seen.counts, seen.policy.names) == ("accepted", True, ())
