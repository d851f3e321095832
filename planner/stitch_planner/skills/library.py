"""Reads the recipes: agent skills, each a SKILL.md with YAML front matter and files beside it.

Only a small part of YAML is read, plain texts and one level of `metadata`: whatever other readers may
understand differently is refused, so that everybody reads the same.
"""

import hashlib
import re
from functools import cache
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from stitch_rag.notes import TechniquePage
from stitch_tools.errors import UsageError
from stitch_tools.models.base import Fact

SKILL_FILE = "SKILL.md"
SECTIONS = ("When", "How", "Look out for", "Measured effect")
Symptom = Literal[
    "memory-bound",
    "compute-bound",
    "launch-bound",
    "many-steps",
    "elementwise",
    "few-results",
    "shared-input",
    "layout-copies",
    "eval-mode",
]
_FRONT = re.compile(r"\A---\n(?P<front>.*?)\n---\n(?P<body>.*)\Z", re.DOTALL)
_LINE = re.compile(r"(?P<indent> {2})?(?P<key>[a-z][a-z-]*):(?: (?P<value>\S.*))?")
_PLAIN = re.compile(r"[A-Za-z](?:(?!: | #).)*(?<![:\s])")
_OTHER_TYPES = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
"""Plain words that YAML reads as something else than a text."""


class SkillMetadata(Fact):
    """When a skill is chosen. Lists are words with spaces between them: agent skills have texts only here."""

    target: Literal["cpu", "cuda"]
    requires: str = ""
    """Symptoms that must all be there."""
    operators: str = ""
    """Operations, or families of steps, that it computes; one of them must be in the plan; "" for all."""
    diagnosis: str = ""
    """Symptoms that make it likelier to help."""
    notes: str
    """Names of the notes that explain the technique."""


class SkillHead(Fact):
    """A skill's front matter."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)
    description: str = Field(max_length=1024)
    """What it does and when to use it."""
    license: str
    metadata: SkillMetadata


class SkillFile(Fact):
    """A file of a skill."""

    path: str
    """Relative to the skill's folder."""
    content: bytes

    @property
    def sha256(self) -> str:
        """Hash of the content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def text(self) -> str:
        """The content; all files of skills are text."""
        return self.content.decode("utf-8")


class Skill(TechniquePage):
    """A recipe: the page, and all files of its folder."""

    head: SkillHead
    files: tuple[SkillFile, ...]
    """By path; SKILL.md is one of them."""

    @property
    def name(self) -> str:
        """Its name, which is that of its folder."""
        return self.head.name

    @property
    def requires(self) -> frozenset[str]:
        """Symptoms that must all be there."""
        return frozenset(self.head.metadata.requires.split())

    @property
    def operators(self) -> frozenset[str]:
        """Operations that it computes; empty for all."""
        return frozenset(self.head.metadata.operators.split())

    @property
    def diagnosis(self) -> frozenset[str]:
        """Symptoms that make it likelier to help."""
        return frozenset(self.head.metadata.diagnosis.split())

    @property
    def notes(self) -> tuple[str, ...]:
        """Names of the notes that it cites."""
        return tuple(self.head.metadata.notes.split())

    @property
    def program(self) -> SkillFile:
        """The complete program."""
        return self.file("program.cpp" if self.head.metadata.target == "cpu" else "program.cu")

    def file(self, path: str) -> SkillFile:
        """The file of that path.

        Raises:
            UsageError: there is none.
        """
        found = next((file for file in self.files if file.path == path), None)
        if found is None:
            paths = ", ".join(file.path for file in self.files)
            raise UsageError(f"skill {self.name} has no file {path[:80]!r}", hint=f"its files: {paths}")
        return found


@cache
def packaged_skills() -> tuple[Skill, ...]:
    """The skills that ship with this package, by name."""
    return load_skills(package_files("stitch_planner") / "skills")


def load_skills(folder: Traversable | Path) -> tuple[Skill, ...]:
    """All skills of a folder by name: its folders that hold a SKILL.md.

    Raises:
        UsageError: a skill does not fit the schema; the message names it.
    """
    folders = sorted((entry for entry in folder.iterdir() if entry.is_dir()), key=lambda entry: entry.name)
    return tuple(read_skill(entry) for entry in folders if (entry / SKILL_FILE).is_file())


def find_skill(name: str) -> Skill:
    """The packaged skill of that name.

    Raises:
        UsageError: there is none; the hint lists the names.
    """
    for skill in packaged_skills():
        if skill.name == name:
            return skill
    names = ", ".join(skill.name for skill in packaged_skills())
    raise UsageError(f"there is no skill {name[:80]!r}", hint=f"skills: {names}")


def read_skill(folder: Traversable | Path) -> Skill:
    """The skill in a folder.

    Raises:
        UsageError: front matter, sections or files are not as they should be.
    """
    entries = sorted((entry for entry in folder.iterdir() if entry.is_file()), key=lambda entry: entry.name)
    files = tuple(SkillFile(path=entry.name, content=entry.read_bytes()) for entry in entries)
    text = (folder / SKILL_FILE).read_text(encoding="utf-8")
    try:
        match = _FRONT.match(text)
        if match is None:
            raise ValueError("it has no front matter between --- lines")
        skill = Skill(
            head=SkillHead.model_validate(front_matter(match["front"])), body=match["body"], files=files
        )
        if skill.name != folder.name:
            raise ValueError(f"its name is {skill.name}")
        if skill.headings != SECTIONS:
            raise ValueError(f"its sections are {skill.headings}, not {SECTIONS}")
    except (ValidationError, ValueError) as error:
        raise UsageError(f"skill {folder.name}: {error}", hint="compare it with a packaged skill") from error
    return skill


def front_matter(text: str) -> dict[str, str | dict[str, str]]:
    """The mapping in a skill's front matter.

    Raises:
        ValueError: a line is not `key: plain text`, or a key occurs twice.
    """
    top: dict[str, str | dict[str, str]] = {}
    inner: dict[str, str] | None = None
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        key, value = (match["key"], match["value"]) if match else ("", None)
        level = top if match is None or match["indent"] is None else inner
        if match is None or level is None or key in level:
            raise ValueError(f"front matter cannot be read at {line!r}")
        if value is None and level is top:
            inner = top[key] = {}
            continue
        if value is None or not _PLAIN.fullmatch(value) or value.lower() in _OTHER_TYPES:
            raise ValueError(f"not a plain text: {line!r}")
        level[key] = value  # pyright: ignore[reportArgumentType]  # a text fits both levels
        if level is top:
            inner = None
    return top
