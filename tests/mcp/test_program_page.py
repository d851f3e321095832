"""The program of docs/program.md does what the page says."""

import re
from pathlib import Path

import pytest

from tests.mcp.cli_support import call

PAGE = Path(__file__).parents[2] / "docs" / "program.md"


def block(language: str) -> str:
    """The page's only code block in a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return found


@pytest.mark.slow
def test_the_page_s_program_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(block("python"), encoding="utf-8")
    (tmp_path / "program.cpp").write_text(block("cpp"), encoding="utf-8")
    code, found = call(tmp_path, "check", "model.py", "program.cpp")
    assert (code, found["status"]) == (0, "accepted"), found
    assert "partial" not in found["flags"]
