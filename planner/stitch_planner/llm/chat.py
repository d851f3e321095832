"""What a language model is asked and answers, whoever provides it."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from stitch_tools.errors import BudgetError, InterruptedRunError, StitchError
from stitch_tools.models.base import Fact, sha256_hex

Finish = Literal["complete", "truncated", "refused"]
_CHARS_PER_TOKEN = 3
"""Fewer than any tokeniser in use has for code, so that a forecast is an upper bound."""


class ChatRequest(Fact):
    """One question: instructions that seldom change, and what is asked this time."""

    system: str
    prompt: str
    max_output_tokens: int
    """Tokens of reasoning and answer together."""
    effort: str | None = None
    """Reasoning effort in the provider's words; None: its default."""

    @property
    def key(self) -> str:
        """Content hash: equal questions have equal keys."""
        return sha256_hex(self.canonical_json())

    @property
    def text(self) -> str:
        """The whole question, for whoever reads it as one text."""
        return f"{self.system}\n---\n\n{self.prompt}"

    @property
    def most_input_tokens(self) -> int:
        """At least as many tokens as the question has."""
        return (len(self.system) + len(self.prompt)) // _CHARS_PER_TOKEN + 64


class ChatAnswer(Fact):
    """What came back. A number is None where the provider does not say it."""

    text: str
    finish: Finish = "complete"
    """`truncated`: the answer was longer than allowed; `refused`: the provider or the model would not."""
    model: str
    """The model that answered, as the provider names it."""
    answered_by: str = ""
    """Who answered where it was no model that was asked just now: "person", "recording"."""
    input_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the input tokens those that the provider had in its cache."""
    output_tokens: int | None = None
    latency_s: float | None = None


@dataclass(frozen=True)
class CallLimits:
    """How long a call may wait, and where its files lie."""

    folder: Path
    """The call's own folder in the run; `prompt.md` is there already."""
    stop: threading.Event
    """When set, the call is given up."""
    end_s: float = float("inf")
    """A time.monotonic() value at which the call is given up."""

    def check(self) -> None:
        """Refuse to wait on.

        Raises:
            InterruptedRunError: somebody asked to stop.
            BudgetError: the time is over.
        """
        if self.stop.is_set():
            raise InterruptedRunError("stopped while the model was asked; everything before it is kept")
        if time.monotonic() > self.end_s:
            raise BudgetError("the time limit was reached while the model was asked")

    def pause(self, seconds: float) -> None:
        """Wait, unless the call is given up meanwhile.

        Raises:
            InterruptedRunError: as `check`.
            BudgetError: as `check`; also at once if the wait would outlast the time limit.
        """
        if time.monotonic() + seconds > self.end_s:
            raise BudgetError(f"the time limit comes before the model's {seconds:.0f} s of waiting are over")
        self.stop.wait(seconds)
        self.check()


class ModelError(StitchError):
    """The model cannot be asked: no key, no quota, no such endpoint. Asking again does not help."""

    code = "model"


class ModelBusyError(StitchError):
    """The model did not answer this time. `was_sent`: it may have begun to, which may have been billed."""

    code = "model_busy"

    def __init__(self, message: str, *, was_sent: bool, retry_after_s: float | None = None) -> None:
        super().__init__(message, hint="ask again later, or choose another model")
        self.was_sent = was_sent
        self.retry_after_s = retry_after_s


class ChatModel(Protocol):
    """Answers questions."""

    @property
    def name(self) -> str:
        """Author of the programs that it writes."""
        ...

    @property
    def may_bill(self) -> bool:
        """Whether a question may cost something, also one whose answer never came."""
        ...

    def ask(self, request: ChatRequest, waiting: CallLimits) -> ChatAnswer:
        """The answer to one question.

        Raises:
            ModelError: it cannot be asked; the hint says what to change.
            ModelBusyError: no answer this time.
            InterruptedRunError: `waiting` was stopped.
            BudgetError: `waiting` is over.
        """
        ...
