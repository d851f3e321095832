"""An endpoint for embeddings: a small server of the same protocol, whose vectors count words."""

import json
import math
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stitch_rag.vectors.client import START_S, VectorChild
from stitch_rag.vectors.embedder import KEY, Endpoint
from stitch_rag.vectors.model import EmbeddingModel, find_model

SECRET = "sk-boxes-0123456789"
WIDTH = 256


def word_counts(text: str) -> list[float]:
    """How often each word occurs, by a hash of it."""
    counts = [0.0] * WIDTH
    for word in text.lower().split():
        counts[zlib.crc32(word.encode()) % WIDTH] += 1.0
    return counts


class Handler(BaseHTTPRequestHandler):
    """POST /v1/embeddings for the model `words`, with the right key."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if key != SECRET:
            self._answer(401, {"error": {"message": f"Incorrect API key provided: {key}"}})
        elif self.path != "/v1/embeddings" or request["model"] != "words":
            self._answer(404, {"error": {"message": "no such model"}})
        else:
            rows = [
                {"object": "embedding", "index": number, "embedding": word_counts(text)}
                for number, text in enumerate(request["input"])
            ]
            # The protocol promises no order.
            self._answer(200, {"object": "list", "model": "words", "data": rows[::-1], "usage": {}})

    def _answer(self, status: int, content: dict[str, object]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_endpoint_gives_one_vector_of_length_one_for_each_text_in_order(address: str) -> None:
    texts = [f"box number {number}" for number in range(70)]
    found = Endpoint(address, "words", {KEY: SECRET}).embed(texts)
    assert len(found) == len(texts)
    assert all(math.isclose(sum(value * value for value in row), 1.0) for row in found)
    lengths = [math.sqrt(sum(value * value for value in word_counts(text))) for text in texts]
    assert found[69][:] == pytest.approx([value / lengths[69] for value in word_counts(texts[69])])


def test_a_refused_key_is_not_repeated(address: str) -> None:
    wrong = "sk-wrong-key-42"
    with pytest.raises(RuntimeError, match="Incorrect API key") as caught:
        Endpoint(address, "words", {KEY: wrong}).embed(["box"])
    assert wrong not in str(caught.value)


def test_an_endpoint_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Connection"):
        Endpoint("http://127.0.0.1:9/v1", "words", {}).embed(["box"])


def test_an_endpoint_is_used_only_where_both_address_and_model_are_named(address: str) -> None:
    assert find_model({"STITCH_EMBEDDING_URL": address}) is None
    model = find_model({"STITCH_EMBEDDING_URL": address, "STITCH_EMBEDDING_MODEL": "words"})
    if model is None:
        pytest.skip("chromadb is not installed")
    assert (model.kind, model.place, model.name) == ("endpoint", address, "words")


@pytest.mark.slow
def test_the_child_stores_and_finds_vectors_of_an_endpoint(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = find_model({"STITCH_EMBEDDING_URL": address, "STITCH_EMBEDDING_MODEL": "words"})
    if model is None:
        pytest.skip("chromadb is not installed")
    monkeypatch.setenv(KEY, SECRET)
    child = VectorChild(model, tmp_path / "vectors")
    assert child.ready(wait_s=START_S)
    assert child.add([("a", "stack a box"), ("b", "open the door")])
    found = child.query("which box", 2)
    assert found is not None
    assert max(found, key=lambda name: found[name]) == "a"
    assert child.ids() == {"a", "b"}
    command = Path(f"/proc/{child.pid}/cmdline").read_bytes()
    child.close()
    assert SECRET.encode() not in command
    stored = b"".join(path.read_bytes() for path in (tmp_path / "vectors").rglob("*") if path.is_file())
    assert SECRET.encode() not in stored


@pytest.mark.parametrize(
    "told",
    [
        "key-in-field",
        "key-in-path",
        "key in field",
        "hunter2",
        "bWU6aHVudGVyMg==",
        SECRET,
        "words-host.invalid",
    ],
)
def test_what_a_server_repeats_of_address_or_key_is_not_told(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, f"{SECRET}\n")
    place = "http://me:hunter2@words-host.invalid/key-in-path/v1?key=key-in-field&other=key%20in%20field"
    child = VectorChild(EmbeddingModel("endpoint", place, "words", "0" * 64), tmp_path / "vectors")
    child.close()
    child.take_reason(f"Error code: 404 - no route {told}embeddings for words")
    assert child.reason == "Error code: 404 - no route (address)embeddings for words"
