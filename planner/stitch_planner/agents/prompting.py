"""Puts prompts together from the Markdown files in `stitch_planner.prompts`."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

PROMPTS = (
    "coder_system",
    "task",
    "write",
    "fix",
    "optimize",
    "draft",
    "again",
    "agent_note",
    "review_system",
    "review",
    "planner_system",
    "plan",
    "plan_again",
    "rubric_system",
    "rubric",
)
_TICKS = re.compile(r"`{3,}")


def prompt_source(name: str) -> str:
    """The text of a prompt file, variables included."""
    return files("stitch_planner").joinpath("prompts", name).read_text(encoding="utf-8")


def render(prompt: str, variables: Mapping[str, object]) -> str:
    """The prompt with its variables filled in; one that is missing is an error of ours."""
    return _environment().from_string(prompt_source(f"{prompt}.md")).render(**variables).strip() + "\n"


def fenced(text: str, info: str) -> str:
    """Text in a fence that nothing inside it can close."""
    longest = max((len(ticks) for ticks in _TICKS.findall(text)), default=2)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{info}\n{text.rstrip()}\n{ticks}"


def clipped(text: str, most_chars: int) -> str:
    """The text, of a longer one its beginning and end."""
    if len(text) <= most_chars:
        return text
    half = most_chars // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"


def whole_sentences(text: str, most_chars: int) -> str:
    """The first sentences of a text that fit; of one that is too long, its first words."""
    if len(text) <= most_chars:
        return text
    kept = text[:most_chars]
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s)", kept)]
    if ends:
        return kept[: ends[-1]]
    return f"{kept[: most_chars - 4].rpartition(' ')[0] or kept[: most_chars - 4]} ..."


def bullets(lines: Sequence[str]) -> str:
    """The lines as a list."""
    return "\n".join(f"- {line}" for line in lines)


@cache
def _environment() -> "Environment":
    # Imported when a prompt is needed: most calls of the command line never render one.
    import jinja2

    return jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=False)
