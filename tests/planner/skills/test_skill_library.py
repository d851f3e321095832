"""The packaged skills fit their schema, cite notes that exist, and claim only what was measured."""

import re
from pathlib import Path
from typing import get_args

import pytest

from stitch_planner.skills.library import (
    SECTIONS,
    SKILL_FILE,
    Skill,
    Symptom,
    front_matter,
    load_skills,
    packaged_skills,
)
from stitch_rag.notes import load_notes
from stitch_tools.errors import UsageError

PAGE = """---
name: stack-boxes
description: Stacks boxes. Use where boxes lie about.
license: Apache-2.0
metadata:
  target: cpu
  operators: mul add
  notes: cpu-simd
---
## When
Boxes.

## How
Stack.

## Look out for
Cats.

## Measured effect
Not measured.
"""


def written(folder: Path, page: str = PAGE, name: str = "stack-boxes") -> Path:
    (folder / name).mkdir()
    (folder / name / SKILL_FILE).write_text(page, encoding="utf-8")
    return folder


def test_a_skill_is_read_with_its_lists_and_files(tmp_path: Path) -> None:
    (written(tmp_path) / "stack-boxes" / "program.cpp").write_text("int x;", encoding="utf-8")
    (skill,) = load_skills(tmp_path)
    assert (skill.name, skill.operators, skill.notes) == ("stack-boxes", {"mul", "add"}, ("cpu-simd",))
    assert (skill.requires, skill.diagnosis) == (frozenset(), frozenset())
    assert skill.program.text == "int x;"
    with pytest.raises(UsageError, match="no file 'x'") as caught:
        skill.file("x")
    assert "program.cpp" in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("---\nname", "name", "no front matter"),
        ("license: Apache-2.0\n", "", "license"),
        ("name: stack-boxes", "name: other-boxes", "its name is other-boxes"),
        ("  target: cpu", "  target: tpu", "target"),
        ("  notes:", "  colour: red\n  notes:", "colour"),
        ("## How", "## Why", "sections"),
        ("description: Stacks boxes.", "description: Stacks: boxes.", "not a plain text"),
        ("description: Stacks boxes.", "description: [Stacks] boxes.", "not a plain text"),
        ("license: Apache-2.0", "license: yes", "not a plain text"),
        ("  target: cpu", "    target: cpu", "cannot be read"),
        ("  target: cpu", "  target: cpu\n  target: cpu", "cannot be read"),
    ],
)
def test_a_page_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in PAGE
    with pytest.raises(UsageError, match=message) as caught:
        load_skills(written(tmp_path, PAGE.replace(old, new, 1)))
    assert caught.value.message.startswith("skill stack-boxes: ")


def test_front_matter_that_ends_in_a_list_goes_back_to_the_upper_level() -> None:
    assert front_matter("a: b\nm:\n  c: d e\nf: g") == {"a": "b", "m": {"c": "d e"}, "f": "g"}


def test_yaml_reads_the_front_matter_of_each_skill_as_we_do() -> None:
    yaml = pytest.importorskip("yaml")
    for skill in packaged_skills():
        text = skill.file(SKILL_FILE).text.split("---\n")[1]
        assert yaml.safe_load(text) == front_matter(text)


def test_there_are_recipes_for_both_targets() -> None:
    targets = [skill.head.metadata.target for skill in packaged_skills()]
    assert targets.count("cpu") >= 6
    assert targets.count("cuda") >= 8


@pytest.mark.parametrize("skill", packaged_skills(), ids=lambda skill: skill.name)
def test_a_skill_is_whole(skill: Skill) -> None:
    assert skill.headings == SECTIONS
    assert {file.path for file in skill.files} == {SKILL_FILE, "reference.py", skill.program.path}
    assert set(skill.notes) <= {note.slug for note in load_notes()}
    assert skill.notes
    assert skill.requires | skill.diagnosis <= set(get_args(Symptom))
    assert "Use on C" in skill.head.description, "it says when to use it"


@pytest.mark.parametrize("skill", packaged_skills(), ids=lambda skill: skill.name)
def test_figures_name_their_machine_and_stand_in_their_section(skill: Skill) -> None:
    before, _, measured = skill.body.partition("## Measured effect")
    claim = re.compile(r"\b\d+(?:\.\d+)?(?:x| times) (?:eager|faster|SGEMM|torch)", re.IGNORECASE)
    assert not claim.search(before)
    if claim.search(measured):
        assert re.search(r"on (?:one|a) (?:H100|H200|Xeon)", measured, re.IGNORECASE)
    else:
        assert "not measured" in measured.lower()
