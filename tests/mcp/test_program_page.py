"""The program of docs/program.md does what the page says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "program.md"
PREFIX = [sys.executable, "-c", "from stitch_mcp.cli import main; raise SystemExit(main())"]


def block(language: str) -> str:
    """The page's only code block in a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return found


@pytest.mark.slow
def test_the_page_s_program_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(block("python"), encoding="utf-8")
    (tmp_path / "program.cpp").write_text(block("cpp"), encoding="utf-8")
    command = [*PREFIX, "check", "model.py", "program.cpp", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)
    assert (done.returncode, found["status"]) == (0, "accepted"), found
    assert "partial" not in found["flags"]
