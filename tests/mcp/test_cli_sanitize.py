"""`check --sanitize` as a user runs it."""

from pathlib import Path
from typing import Any

import pytest

from tests.mcp.cli_support import call

PROGRAMS = Path(__file__).parents[1] / "tools" / "programs"

pytestmark = pytest.mark.slow


def check(folder: Path, defect: str, *options: str) -> dict[str, Any]:
    """The JSON of one check of `doubled.cpp` with a defect."""
    program = folder / "program"
    program.mkdir()
    (folder / "reference.py").write_bytes((PROGRAMS / "doubled.py").read_bytes())
    (program / "doubled.cpp").write_bytes((PROGRAMS / "doubled.cpp").read_bytes())
    (program / "defect.h").write_text(f"#define DEFECT {defect}\n", encoding="utf-8")
    _, found = call(folder, "check", "reference.py", "program", *options)
    return found


def test_a_read_beyond_an_input_passes_the_comparison_and_not_the_sanitizers(tmp_path: Path) -> None:
    found = check(tmp_path, "READS_ONE_BEYOND", "--sanitize")
    if found["sanitizers"][0]["status"] == "not_checked":
        pytest.skip(f"not measured: {found['sanitizers'][0]['reason']}")
    assert (found["exit_code"], found["status"]) == (3, "incorrect")
    assert all(draw["ok"] for draw in found["draws"])
    assert found["message"].startswith("asan: doubled.cpp:")
    assert "asan.heap-buffer-overflow" in [row["rule"] for row in found["findings"]]


def test_an_honest_program_is_accepted_with_every_tool_named(tmp_path: Path) -> None:
    found = check(tmp_path, "NONE", "--sanitize")
    assert (found["exit_code"], found["status"]) == (0, "accepted")
    assert [run["tool"] for run in found["sanitizers"]] == ["asan", "ubsan", "init", "tsan"]
    without = [text for text in found["not_checked"] if text.startswith("certified without")]
    assert len(without) == sum(run["status"] == "not_checked" for run in found["sanitizers"])


def test_a_check_without_sanitizers_says_so(tmp_path: Path) -> None:
    found = check(tmp_path, "NONE")
    assert found["sanitizers"] == []
    assert "memory errors and races (check --sanitize looks for them)" in found["not_checked"]
