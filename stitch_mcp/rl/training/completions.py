"""What a completion of a model holds: its text, or why it cannot be used."""

from typing import Literal

from stitch_mcp.rl.reward.submissions import without_thoughts
from stitch_planner.agents.answers import UnusableAnswerError

Problem = Literal[
    "truncated", "empty", "only_thinking", "no_code", "several_blocks", "no_choice", "no_program"
]


class UnusableCompletionError(ValueError):
    """A completion that gives no program. It gets the reward's floor and is not judged."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem: Problem = problem


def completion_text(completion: object) -> str:
    """The text of a completion as trainers hand it over: a string, or a list of chat messages."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, list):
        parts: list[str] = []
        for message in completion:  # pyright: ignore[reportUnknownVariableType] # a trainer's own JSON
            content = message.get("content") if isinstance(message, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            parts += [content] if isinstance(content, str) else []
        return "\n".join(parts)
    return ""


def answer_of(text: str, *, truncated: bool) -> str:
    """The answer in a completion, without what the model thought before it.

    Raises:
        UnusableCompletionError: it was cut off, is empty, or holds nothing but a thought.
    """
    if truncated:
        raise UnusableCompletionError("truncated", "the completion was cut off at its longest length")
    try:
        answer = without_thoughts(text)
    except UnusableAnswerError as error:
        raise UnusableCompletionError("only_thinking", str(error)) from error
    if not answer.strip():
        if text.strip():
            raise UnusableCompletionError("only_thinking", "nothing follows the thought")
        raise UnusableCompletionError("empty", "the completion is empty")
    return answer.strip()
