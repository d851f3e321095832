"""Turns completions into programs: files that a model writes, or words that choose a variant."""

from collections.abc import Mapping
from typing import Protocol

from pydantic import Field

from stitch_mcp.rl.reward.facts import Skill
from stitch_mcp.rl.reward.submissions import Submission, read_submission
from stitch_mcp.rl.training.completions import UnusableCompletionError
from stitch_mcp.rl.training.variants.rows import RowsTask, UnusableChoiceError, read_choice, render_variant
from stitch_planner.agents.answers import UnusableAnswerError
from stitch_tools.models.base import Fact


class PromptRow(Fact):
    """One prompt of a training set. What a trainer needs beside its text."""

    skill: Skill
    task: str
    """Name of the task."""
    reference: str
    """Absolute path of the reference or task.toml."""
    text: str = ""
    """The prompt of a model without a chat template."""
    messages: tuple[dict[str, str], ...] = ()
    """The prompt as chat messages; () where it is plain text."""
    parent_files: dict[str, str] = Field(default_factory=dict[str, str])
    """Files of the program that is to be improved; {} for `generate`."""
    parent_main: str = ""
    rows: tuple[int, int, int] | None = None
    """Activation, rows and columns of a task of the row family; None for others."""


class Policy(Protocol):
    """What a completion stands for."""

    def program(self, answer: str, row: PromptRow) -> tuple[Mapping[str, str], str]:
        """Files and main file of the program.

        Raises:
            UnusableCompletionError: the answer stands for none.
        """
        ...


class CodePolicy:
    """The completion is an answer as the model loop takes it: fences that name their files, or one fence."""

    def program(self, answer: str, row: PromptRow) -> tuple[Mapping[str, str], str]:
        """See `Policy`."""
        submission = Submission(
            skill=row.skill, text=answer, parent=row.parent_files, parent_main=row.parent_main
        )
        try:
            read = read_submission(submission)
        except UnusableAnswerError as error:
            fences = answer.count("```") // 2
            problem = "no_code" if not fences else "several_blocks" if fences > 1 else "no_program"
            raise UnusableCompletionError(problem, str(error)) from error
        return {path: data.decode("utf-8", "replace") for path, data in read.files.items()}, read.main or ""


class ChoicePolicy:
    """The completion names a value of each axis of the row family."""

    def __init__(self, target: str) -> None:
        """A policy for `cpu` or `cuda...`."""
        self._target = target

    def program(self, answer: str, row: PromptRow) -> tuple[Mapping[str, str], str]:
        """See `Policy`."""
        assert row.rows is not None
        try:
            choice = read_choice(answer, self._target)
        except UnusableChoiceError as error:
            raise UnusableCompletionError("no_choice", str(error)) from error
        files = render_variant(RowsTask(*row.rows), choice, self._target)
        return files, next(iter(files))


def plain_prompt(messages: tuple[dict[str, str], ...]) -> str:
    """Chat messages as plain text, for a model whose tokenizer has no chat template."""
    parts = [f"# {message['role']}\n\n{message['content'].strip()}\n" for message in messages]
    return "\n".join([*parts, "# assistant\n\n"])
