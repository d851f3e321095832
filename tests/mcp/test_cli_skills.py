"""`stitch-mcp skills`: lists, shows, and copies the recipes without overwriting what somebody changed."""

import json
from pathlib import Path

import pytest

from stitch_mcp.cli import main
from stitch_planner.skills.library import load_skills, packaged_skills


def test_the_list_names_every_skill(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skills", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["skills"]
    assert [row["name"] for row in rows] == [skill.name for skill in packaged_skills()]


def test_a_skill_is_shown_with_its_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skills", "show", "cpu-softmax-rows"]) == 0
    output = capsys.readouterr().out
    assert "## Look out for" in output
    assert "int32_t stitch_forward(" in output
    assert main(["skills", "show", "no-such-skill", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"] == "there is no skill 'no-such-skill'"
    assert "cpu-softmax-rows" in error["hint"]


def test_what_is_installed_is_what_is_packaged_and_a_second_time_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "agent" / "skills"
    assert main(["skills", "install", str(target), "--json"]) == 0
    files = sum(len(skill.files) for skill in packaged_skills())
    assert len(json.loads(capsys.readouterr().out)["written"]) == files
    assert load_skills(target) == packaged_skills()
    assert main(["skills", "install", str(target), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["written"], again["unchanged"]) == ([], files)


def test_a_changed_file_is_overwritten_by_force_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["skills", "install", str(tmp_path)]) == 0
    page = tmp_path / "cpu-softmax-rows" / "SKILL.md"
    mine = tmp_path / "my-skill" / "SKILL.md"
    mine.parent.mkdir()
    mine.write_text("mine", encoding="utf-8")
    packaged = page.read_bytes()
    page.write_text("changed", encoding="utf-8")
    (tmp_path / "cpu-packed-gemm" / "program.cpp").unlink()
    assert main(["skills", "install", str(tmp_path)]) == 2
    assert "cpu-softmax-rows/SKILL.md" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == "changed"
    assert not (tmp_path / "cpu-packed-gemm" / "program.cpp").exists(), "nothing was written"
    assert main(["skills", "install", str(tmp_path), "--force"]) == 0
    assert page.read_bytes() == packaged
    assert mine.read_text(encoding="utf-8") == "mine"
