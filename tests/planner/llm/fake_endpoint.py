"""A server of Chat Completions and Responses whose answers a test lays out, one for each request."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 200,
    "total_tokens": 1200,
    "prompt_tokens_details": {"cached_tokens": 600},
}


@dataclass(frozen=True)
class Refusal:
    """A status with an error body."""

    status: int
    message: str
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Reply:
    """A streamed answer."""

    text: str
    finish: str | None = "stop"
    """None: the stream just ends."""
    breaks_after: int | None = None
    """The connection is cut after so many pieces."""
    stalls_s: float = 0.0
    """Seconds before the first piece."""
    usage: bool = True


Entry = Reply | Refusal | Callable[[str], Reply]
"""What answers a request; a function sees its prompt."""


@dataclass
class FakeEndpoint:
    """Where it listens and what it was asked."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    keys: list[str] = field(default_factory=list[str])


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: tuple[Entry, ...]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.seen = FakeEndpoint(f"http://127.0.0.1:{self.server_port}/v1")
        self.released = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: a client that gives up in the middle is what some tests are about."""

    def next_entry(self, body: dict[str, Any], key: str) -> Reply | Refusal:
        """What the script has for this request."""
        entry = self.script[min(len(self.seen.requests), len(self.script) - 1)]
        self.seen.requests.append(body)
        self.seen.keys.append(key)
        return entry(body["messages"][1]["content"]) if callable(entry) else entry


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _home(self) -> _Server:
        assert isinstance(self.server, _Server)
        return self.server

    @property
    def _speaks_responses(self) -> bool:
        return self.path.endswith("/responses")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        entry = self._home.next_entry(body, self.headers.get("authorization", ""))
        if isinstance(entry, Refusal):
            error = {"message": entry.message, "code": entry.code, "type": "invalid_request_error"}
            self._json(entry.status, {"error": error}, entry.headers)
        elif body.get("stream"):
            self._stream(entry)
        else:
            self._json(200, _whole_response(entry) if self._speaks_responses else _whole(entry))

    def _json(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, entry: Reply) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        # More than will come, so that the cut shows.
        if entry.breaks_after is not None:
            self.send_header("content-length", "100000")
        self.end_headers()
        self.close_connection = True
        self._home.released.wait(entry.stalls_s)
        for place, piece in enumerate(_events(entry) if self._speaks_responses else _pieces(entry)):
            if place == entry.breaks_after:
                return
            # Responses names each event; Chat Completions does not.
            name = f"event: {piece['type']}\n" if self._speaks_responses else ""
            self.wfile.write(f"{name}data: {json.dumps(piece)}\n\n".encode())
            self.wfile.flush()
        if entry.finish is not None and not self._speaks_responses:
            self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test's output is for failures."""


@contextlib.contextmanager
def endpoint(*script: Entry) -> Generator[FakeEndpoint]:
    """A server on this machine; after its script it repeats the last entry."""
    server = _Server(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.seen
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()


def _chunk(delta: dict[str, str], finish: str | None = None, usage: object = None) -> dict[str, Any]:
    choices = [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}]
    base = {"id": "x", "object": "chat.completion.chunk", "created": int(time.time()), "model": "fake-1"}
    return {**base, "choices": choices, **({"usage": usage} if usage else {})}


def _pieces(entry: Reply) -> Iterator[dict[str, Any]]:
    half = len(entry.text) // 2
    for text in (entry.text[:half], entry.text[half:]):
        yield _chunk({"role": "assistant", "content": text})
    if entry.finish:
        yield _chunk({}, entry.finish)
        if entry.usage:
            yield _chunk({}, usage=USAGE)


def _whole(entry: Reply) -> dict[str, Any]:
    message = {"role": "assistant", "content": entry.text}
    choice = {"index": 0, "message": message, "finish_reason": entry.finish or "stop"}
    base = {"id": "x", "object": "chat.completion", "created": int(time.time()), "model": "fake-1"}
    return {**base, "choices": [choice], "usage": USAGE}


# What the finish of Chat Completions is called in Responses: the status, and why the answer is not whole.
_ENDS = {
    "stop": ("completed", None),
    "length": ("incomplete", {"reason": "max_output_tokens"}),
    "content_filter": ("incomplete", {"reason": "content_filter"}),
    "failed": ("failed", None),
}


def _whole_response(entry: Reply) -> dict[str, Any]:
    status, details = _ENDS[entry.finish or "stop"]
    content = [{"type": "output_text", "text": entry.text, "annotations": []}]
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    usage = {
        "input_tokens": 1000,
        "input_tokens_details": {"cached_tokens": 600},
        "output_tokens": 200,
        "output_tokens_details": {"reasoning_tokens": 50},
        "total_tokens": 1200,
    }
    base = {"id": "r", "object": "response", "created_at": int(time.time()), "model": "fake-1", "tools": []}
    return {
        **base,
        "status": status,
        "incomplete_details": details,
        "error": {"code": "server_error", "message": "a GPU went away"} if status == "failed" else None,
        "output": [message],
        "usage": usage if entry.usage else None,
    }


def _events(entry: Reply) -> Iterator[dict[str, Any]]:
    half = len(entry.text) // 2
    for number, text in enumerate((entry.text[:half], entry.text[half:])):
        place = {"item_id": "m", "output_index": 0, "content_index": 0, "logprobs": []}
        yield {"type": "response.output_text.delta", "sequence_number": number, "delta": text, **place}
    if entry.finish:
        whole = _whole_response(entry)
        yield {"type": f"response.{whole['status']}", "sequence_number": 2, "response": whole}
