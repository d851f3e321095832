"""What a policy submits, and the program that it amounts to. No number is ever read from it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from markdown_it import MarkdownIt
from pydantic import Field

from stitch_mcp.rl.reward.facts import Skill
from stitch_planner.agents.answers import UnusableAnswerError, read_answer
from stitch_tools.errors import StoreError
from stitch_tools.models.base import Fact
from stitch_tools.storage.store import checked_path

_THOUGHT_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_PYTHON = ("python", "py", "python3")
_MOST_CHARS = 4 << 20
_LONGEST_PATH_BYTES = 200
"""Longer ones may not fit where a judge unpacks them, which would count as a fault of ours."""


class Submission(Fact):
    """What a policy answered, or the files of a program."""

    skill: Skill = "generate"
    text: str = ""
    """The whole completion: its fences are the program's files."""
    files: dict[str, str] = Field(default_factory=dict[str, str])
    """Sources by path, in place of `text`."""
    main: str = ""
    """Which of several files is compiled."""
    parent: dict[str, str] = Field(default_factory=dict[str, str])
    """Files of the program that was to be refined."""
    parent_main: str = ""
    instruction: str = ""
    """What the policy was asked to change (`refine`)."""


@dataclass(frozen=True)
class SubmittedProgram:
    """The files of a submission."""

    files: Mapping[str, bytes]
    main: str | None
    """None: whichever file alone can be meant."""


def read_submission(submission: Submission) -> SubmittedProgram:
    """The program that was submitted.

    Raises:
        UnusableAnswerError: there is none; the text says why.
    """
    if submission.files:
        return SubmittedProgram(checked_files(submission.files), submission.main or None)
    if len(submission.text) > _MOST_CHARS:
        raise UnusableAnswerError(f"It is longer than {_MOST_CHARS >> 20} MiB.")
    text = without_thoughts(submission.text)
    _refuse_cut_off(text)
    parent = checked_files(submission.parent) if submission.skill == "refine" else {}
    answer = read_answer(_with_named_module(text), parent, submission.parent_main)
    return SubmittedProgram(_checked_bytes(answer.files), answer.main)


def without_thoughts(text: str) -> str:
    """The text without what a model thought before it answered.

    Some chat templates begin the thought in the prompt, so that the completion has only its end.

    Raises:
        UnusableAnswerError: the thought does not end.
    """
    kept: list[str] = []
    end, is_open = 0, False
    # Tag by tag: a pattern over pairs takes quadratic time where a policy repeats the opening one.
    for tag in _THOUGHT_TAG.finditer(text):
        if not tag[1]:
            kept += [] if is_open else [text[end : tag.start()]]
            is_open = True
            continue
        if not is_open:
            kept.clear()
        end, is_open = tag.end(), False
    if is_open:
        raise UnusableAnswerError("Its thought does not end: it was cut off before the answer.")
    return "".join([*kept, text[end:]])


def _refuse_cut_off(text: str) -> None:
    """Refuse a text whose last fence is not closed: half a program may compile, and mean something else."""
    lines = text.splitlines()
    fences = [token for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    if fences and fences[-1].map is not None:
        first, end = fences[-1].map
        last = lines[min(end, len(lines)) - 1].strip()
        if end - first < 2 or last.strip(fences[-1].markup[0]) or len(last) < len(fences[-1].markup):
            raise UnusableAnswerError("Its last fence is not closed: it was cut off.")


def _with_named_module(text: str) -> str:
    """The text with a path for its one Python fence, as benchmarks ask for a `ModelNew` without a name."""
    fences = [token for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    if len(fences) == 1 and fences[0].info.strip().lower() in _PYTHON and fences[0].map is not None:
        lines = text.splitlines()
        lines[fences[0].map[0]] += " candidate.py"
        return "\n".join(lines) + "\n"
    return text


def checked_files(files: Mapping[str, str]) -> dict[str, bytes]:
    """The files as bytes, each by a path at which it can lie in one folder with the others.

    Raises:
        UnusableAnswerError: a path leaves the folder, is too long, or lies below a file.
    """
    return _checked_bytes({path: text.encode("utf-8", "replace") for path, text in files.items()})


def _checked_bytes(files: Mapping[str, bytes]) -> dict[str, bytes]:
    try:
        checked = {checked_path(path): data for path, data in files.items()}
    except StoreError as error:
        raise UnusableAnswerError(error.message) from error
    for path in checked:
        if len(path.encode("utf-8", "replace")) > _LONGEST_PATH_BYTES:
            raise UnusableAnswerError(f"The path {path[:60]}... is longer than {_LONGEST_PATH_BYTES} bytes.")
        if above := next((str(row) for row in PurePosixPath(path).parents if str(row) in checked), None):
            raise UnusableAnswerError(f"{above} is a file, and {path} lies below it.")
    return checked
