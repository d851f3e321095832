"""The skills as resources, and by the protocol's Skills extension (SEP-2640)."""

import json
from typing import Any

import mcp_types as types
from pydantic import Field

from stitch_planner.skills.library import SKILL_FILE, Skill, find_skill, packaged_skills
from stitch_tools.errors import UsageError

EXTENSION = "io.modelcontextprotocol/skills"
INDEX = "stitch://skills"
_SCHEME = "skill://"
_FRESH_MS = 3_600_000
"""How long a client may keep an answer: skills change with the version of the server alone."""
_MIME_TYPES = {"md": "text/markdown", "cpp": "text/x-c", "cu": "text/x-c", "py": "text/x-python"}


class GetSkillParams(types.RequestParams):
    """Parameters of skills/get."""

    uri: str = Field(max_length=400)


def skills_index() -> str:
    """All skills with name, description and hash as JSON, for clients without the extension."""
    rows = [
        {
            "name": skill.name,
            "description": skill.head.description,
            "sha256": skill.file(SKILL_FILE).sha256,
            "uri": f"{INDEX}/{skill.name}",
        }
        for skill in packaged_skills()
    ]
    return json.dumps({"skills": rows}, indent=1)


def is_skill(uri: str) -> bool:
    """Whether an address is one of a skill's files."""
    return uri.startswith((_SCHEME, f"{INDEX}/"))


def read_skill_file(uri: str) -> tuple[str, str]:
    """Mime type and text of skill://NAME/FILE, or of stitch://skills/NAME: that skill's SKILL.md.

    Raises:
        UsageError: there is no such skill or file.
    """
    name, _, path = uri.removeprefix(_SCHEME).removeprefix(f"{INDEX}/").partition("/")
    file = find_skill(name).file(path or SKILL_FILE)
    return _MIME_TYPES[file.path.rpartition(".")[2]], file.text


def list_skills() -> dict[str, Any]:
    """Result of skills/list."""
    return _result({"skills": [_entry(skill) for skill in packaged_skills()]})


def get_skill(uri: str) -> dict[str, Any]:
    """Result of skills/get.

    Raises:
        UsageError: the address is not that of a skill's SKILL.md.
    """
    for skill in packaged_skills():
        if uri == _uri(skill, SKILL_FILE):
            return _result({"skill": _entry(skill)})
    raise UsageError(f"there is no skill {uri[:120]!r}", hint="skills/list names them")


def _result(fields: dict[str, Any]) -> dict[str, Any]:
    return {"resultType": "complete", **fields, "ttlMs": _FRESH_MS, "cacheScope": "public"}


def _entry(skill: Skill) -> dict[str, Any]:
    return {
        "uri": _uri(skill, SKILL_FILE),
        # Clients compare it with what they read of the file: exactly what the author wrote.
        "frontmatter": skill.head.model_dump(mode="json", exclude_unset=True),
        "resources": [
            {"uri": _uri(skill, file.path), "digest": f"sha256:{file.sha256}", "size": len(file.content)}
            for file in skill.files
        ],
    }


def _uri(skill: Skill, path: str) -> str:
    return f"{_SCHEME}{skill.name}/{path}"
