"""The two ways to ask an endpoint of OpenAI's kind, and how the pieces of an answer are put together.

Chat Completions is what every server speaks (vLLM, llama.cpp, Ollama, OpenRouter); Responses is OpenAI's own.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stitch_planner.llm.chat import ChatAnswer, ChatRequest, Finish, ModelBusyError

if TYPE_CHECKING:
    from openai import OpenAI

_CHAT_FINISH: dict[str, Finish] = {"length": "truncated", "content_filter": "refused"}


@dataclass
class Form(ABC):
    """Which optional arguments the endpoint takes; found out by its refusals, once for an endpoint."""

    limit_names: list[str]
    """Names of the limit of output tokens, those that were refused left out."""
    optional: list[str]

    def gives_way(self, refused: str) -> bool:
        """Leave out what a refusal names; False where it names nothing that can be left out."""
        # Too long a question is no matter of form, though such a refusal names the limit, too.
        if "context length" in refused or "context window" in refused:
            return False
        if self.limit_names and self.limit_names[0] in refused:
            self.limit_names.pop(0)
            return True
        for name in self.optional:
            if name in refused:
                self.optional.remove(name)
                return True
        return False

    @property
    def streams(self) -> bool:
        """Whether an answer comes in pieces."""
        return "stream" in self.optional

    def create(self, client: "OpenAI", model: str, request: ChatRequest) -> Any:
        """The answer, or the stream of its pieces."""
        arguments: dict[str, Any] = {"model": model}
        if self.limit_names:
            arguments[self.limit_names[0]] = request.max_output_tokens
        if self.streams:
            arguments["stream"] = True
        return self._send(client, arguments, request)

    @abstractmethod
    def _send(self, client: "OpenAI", arguments: dict[str, Any], request: ChatRequest) -> Any:
        """Put the question, and what else this way has a word for, to the endpoint."""

    @abstractmethod
    def new_answer(self) -> "Gathered":
        """Takes the pieces of one answer."""


@dataclass
class Gathered(ABC):
    """The pieces of one answer, streamed or whole."""

    texts: list[str] = field(default_factory=list[str])
    finish: Finish | None = None
    """None: nobody said that the answer is at its end."""
    model: str = ""
    refusal: bool = False
    usage: Any = None

    @abstractmethod
    def add(self, piece: Any) -> None:
        """One more piece.

        Raises:
            ModelBusyError: the endpoint gave up in the middle.
        """

    @abstractmethod
    def tokens(self) -> tuple[int | None, int | None, int | None]:
        """Of input, of those the cached ones, and of output; None where it was not said."""

    def answer(self, name: str, latency_s: float) -> ChatAnswer:
        """All of them.

        Raises:
            ModelBusyError: the stream ended before the answer did.
        """
        text = "".join(self.texts)
        if not self.finish and not text:
            raise ModelBusyError(f"{name} ended its answer before it began", was_sent=True)
        given, cached, made = self.tokens()
        return ChatAnswer(
            text=text,
            # A stream that just ends, without a reason, was cut off on its way.
            finish="refused" if self.refusal else self.finish or "truncated",
            model=self.model or name,
            input_tokens=given,
            cached_tokens=cached,
            output_tokens=made,
            latency_s=latency_s,
        )


class ChatForm(Form):
    """Chat Completions."""

    def __init__(self) -> None:
        super().__init__(
            ["max_completion_tokens", "max_tokens"], ["stream_options", "reasoning_effort", "stream"]
        )

    def _send(self, client: "OpenAI", arguments: dict[str, Any], request: ChatRequest) -> Any:
        arguments["messages"] = [
            {"role": "system", "content": request.system},
            {"role": "user", "content": request.prompt},
        ]
        if self.streams and "stream_options" in self.optional:
            arguments["stream_options"] = {"include_usage": True}
        if request.effort and "reasoning_effort" in self.optional:
            arguments["reasoning_effort"] = request.effort
        create: Any = client.chat.completions.create
        return create(**arguments)

    def new_answer(self) -> Gathered:
        """As Form says."""
        return _ChatAnswer()


class _ChatAnswer(Gathered):
    def add(self, piece: Any) -> None:
        self.model = getattr(piece, "model", None) or self.model
        self.usage = getattr(piece, "usage", None) or self.usage
        for choice in piece.choices or ():
            part = getattr(choice, "delta", None) or getattr(choice, "message", None)
            if part is not None:
                self.texts.append(part.content or "")
                self.refusal |= bool(getattr(part, "refusal", None))
            if choice.finish_reason:
                self.finish = _CHAT_FINISH.get(choice.finish_reason, "complete")

    def tokens(self) -> tuple[int | None, int | None, int | None]:
        cached = getattr(getattr(self.usage, "prompt_tokens_details", None), "cached_tokens", None)
        return (
            getattr(self.usage, "prompt_tokens", None),
            cached,
            getattr(self.usage, "completion_tokens", None),
        )


class ResponsesForm(Form):
    """Responses. The question is not kept at the endpoint (`store`): each one stands for itself."""

    def __init__(self) -> None:
        super().__init__(["max_output_tokens"], ["store", "reasoning", "stream"])

    def _send(self, client: "OpenAI", arguments: dict[str, Any], request: ChatRequest) -> Any:
        arguments |= {"instructions": request.system, "input": request.prompt}
        if "store" in self.optional:
            arguments["store"] = False
        if request.effort and "reasoning" in self.optional:
            arguments["reasoning"] = {"effort": request.effort}
        create: Any = client.responses.create
        return create(**arguments)

    def new_answer(self) -> Gathered:
        """As Form says."""
        return _ResponsesAnswer()


class _ResponsesAnswer(Gathered):
    def add(self, piece: Any) -> None:
        match getattr(piece, "type", ""):
            case "response.output_text.delta":
                self.texts.append(piece.delta)
            case "response.refusal.delta":
                self.refusal = True
            case "response.completed" | "response.incomplete" | "response.failed":
                self._end(piece.response)
            case "error":
                raise ModelBusyError(f"the endpoint broke off its answer: {piece.message}", was_sent=True)
            case "" if getattr(piece, "object", "") == "response":
                self.texts.append(piece.output_text)
                parts = [part for item in piece.output for part in getattr(item, "content", None) or ()]
                self.refusal = any(part.type == "refusal" for part in parts)
                self._end(piece)
            case _:
                pass  # Thinking, and the begin and end of parts.

    def _end(self, response: Any) -> None:
        self.model = response.model or self.model
        self.usage = response.usage or self.usage
        if response.status == "failed":
            said = response.error.message if response.error else "no reason was given"
            raise ModelBusyError(f"the endpoint broke off its answer: {said}", was_sent=True)
        self.finish = "complete"
        if response.status == "incomplete":
            reason = getattr(response.incomplete_details, "reason", "")
            self.finish = "refused" if reason == "content_filter" else "truncated"

    def tokens(self) -> tuple[int | None, int | None, int | None]:
        cached = getattr(getattr(self.usage, "input_tokens_details", None), "cached_tokens", None)
        return getattr(self.usage, "input_tokens", None), cached, getattr(self.usage, "output_tokens", None)
