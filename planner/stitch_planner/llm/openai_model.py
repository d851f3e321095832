"""Models behind an endpoint of OpenAI's kind: a vendor's, vLLM, llama.cpp, Ollama, OpenRouter."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stitch_planner.llm.chat import CallLimits, ChatAnswer, ChatRequest, ModelBusyError, ModelError
from stitch_planner.llm.model_settings import Api
from stitch_planner.llm.openai_forms import ChatForm, Form, ResponsesForm

if TYPE_CHECKING:
    from openai import APIStatusError, OpenAI

_CONNECT_S, _STALL_S = 20.0, 300.0
"""For a connection, and between two pieces of an answer: a model may think for minutes before the first."""
_POLL_S = 0.1
_OVERLOADED = (408, 409, 429, 503, 529)
"""Statuses of a question that was not worked on."""
_NO_QUOTA = ("insufficient_quota", "billing_hard_limit_reached", "credits_exhausted")


class OpenAIModel:
    """One model at one endpoint."""

    may_bill = True

    def __init__(
        self, model: str, *, base_url: str | None, key: Callable[[], str], api: Api = "chat"
    ) -> None:
        """Nothing is sent yet.

        Args:
            model: its name at the endpoint.
            base_url: for example http://localhost:8000/v1; None: OpenAI's own.
            key: gives the secret when it is first needed.
            api: what the endpoint speaks.
        """
        self.name = model
        self._base_url, self._key = base_url, key
        self._form: Form = ResponsesForm() if api == "responses" else ChatForm()
        self._client: OpenAI | None = None
        self._secret = ""

    def ask(self, request: ChatRequest, waiting: CallLimits) -> ChatAnswer:
        """As ChatModel says."""
        # In a thread: a read that waits for a model ends neither for a stop nor for a time limit.
        pieces: queue.Queue[Any] = queue.Queue()
        given_up = threading.Event()
        client, began = self._connected(), time.monotonic()
        thread = threading.Thread(target=self._pump, args=(client, request, pieces, given_up), daemon=True)
        thread.start()
        gathered = self._form.new_answer()
        try:
            for piece in _until_end(pieces, waiting):
                gathered.add(piece)
        finally:
            given_up.set()
        return gathered.answer(self.name, round(time.monotonic() - began, 3))

    def _connected(self) -> "OpenAI":
        if self._client is None:
            import httpx2
            import openai

            self._secret = self._key()
            # Our own retries know what may have been billed; those of the library do not.
            timeout = httpx2.Timeout(_STALL_S, connect=_CONNECT_S)
            # A local server wants no key, and the library wants one.
            self._client = openai.OpenAI(
                api_key=self._secret or "none", base_url=self._base_url, max_retries=0, timeout=timeout
            )
        return self._client

    def _pump(
        self,
        client: "OpenAI",
        request: ChatRequest,
        pieces: "queue.Queue[Any]",
        given_up: threading.Event,
    ) -> None:
        """Put all pieces of the answer into the queue; its last entry is None, or why there are no more."""
        try:
            for piece in self._stream(client, request):
                if given_up.is_set():
                    return
                pieces.put(piece)
            pieces.put(None)
        except Exception as error:  # handed on to the thread that waits
            pieces.put(error)

    def _stream(self, client: "OpenAI", request: ChatRequest) -> Iterator[Any]:
        import httpx2
        import openai

        begun = False
        try:
            reply = self._create(client, request)
            begun = True
            if not self._form.streams:
                yield reply
                return
            with reply:
                yield from reply
        except openai.APIStatusError as error:
            raise self._status_error(error) from None
        except (openai.APIError, httpx2.HTTPError) as error:
            cause = error.__cause__ or error
            unsent = isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout)
            what = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
            where = "broke off its answer" if begun else "did not answer"
            message = f"{self._where()} {where} ({self._hidden(what)})"
            raise ModelBusyError(message, was_sent=not unsent) from None

    def _create(self, client: "OpenAI", request: ChatRequest) -> Any:
        import openai

        while True:
            try:
                return self._form.create(client, self.name, request)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                # Refused before any token was made, so asking again in another form costs nothing.
                if not self._form.gives_way(str(error)):
                    raise

    def _status_error(self, error: "APIStatusError") -> ModelError | ModelBusyError:
        status, said = error.status_code, self._hidden(error.message)[:500]
        message = f"{self._where()} answered {status}: {said}"
        if status in (401, 403):
            return ModelError(message, hint="check the key: `key_env` of the model names its variable")
        if status == 404:
            return ModelError(message, hint="check the model's name and `base_url`")
        if any(code in (str(error.code), str(error.body)) or code in said for code in _NO_QUOTA):
            return ModelError(message, hint="the account has no credit left: top it up, or use another model")
        if status in _OVERLOADED or status >= 500:
            after = error.response.headers.get("retry-after", "")
            wait_s = float(after) if after.replace(".", "", 1).isdigit() else None
            return ModelBusyError(message, was_sent=status not in _OVERLOADED, retry_after_s=wait_s)
        return ModelError(message, hint="the endpoint refuses the question; see its own message")

    def _where(self) -> str:
        return f"{self.name} at {self._base_url or 'the default endpoint'}"

    def _hidden(self, text: str) -> str:
        return text.replace(self._secret, "<key>") if self._secret else text


def _until_end(pieces: "queue.Queue[Any]", waiting: CallLimits) -> Iterator[Any]:
    while True:
        waiting.check()
        try:
            piece = pieces.get(timeout=_POLL_S)
        except queue.Empty:
            continue
        if piece is None:
            return
        if isinstance(piece, Exception):
            raise piece
        yield piece
