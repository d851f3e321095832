"""The child process: holds model and collection, answers one JSON line with one JSON line, ends when idle.

`python -m stitch_rag.vectors.child KIND PLACE NAME FINGERPRINT FOLDER IDLE_S`; the first four are an
`EmbeddingModel`'s, but an endpoint's place stands in STITCH_EMBEDDING_URL. Requests:
{"add": [[id, text], ...]}, {"drop": [id, ...]}, {"ids": true}, {"query": text, "count": n}, {"alone": true}
(no vectors of other models stay). The end of stdin, or no request for IDLE_S seconds, ends it.
"""

import importlib
import json
import os
import select
import sys

from stitch_rag.vectors.embedder import Embedder, open_embedder
from stitch_rag.vectors.messages import VectorReply, VectorRequest
from stitch_rag.vectors.model import ADDRESS, collection_name

_BATCH = 64


class Vectors:
    """The model and the collection of one folder."""

    def __init__(self, embedder: Embedder, fingerprint: str, folder: str) -> None:
        os.environ["ANONYMIZED_TELEMETRY"] = "False"
        chromadb = importlib.import_module("chromadb")
        self._embedder = embedder
        self._client = chromadb.PersistentClient(path=folder)
        self._name = collection_name(fingerprint)
        self._collection = self._client.get_or_create_collection(
            self._name, embedding_function=None, metadata={"hnsw:space": "cosine"}
        )

    def count(self) -> int:
        """How many vectors are stored."""
        return int(self._collection.count())

    def warm_up(self) -> None:
        """Read what the first question needs: it takes some 200 ms more than the second."""
        self.answer({"query": "warm up", "count": 1})

    def answer(self, request: VectorRequest) -> VectorReply:
        """What one request asks for."""
        if "add" in request:
            self._add(request["add"])
            return {"added": len(request["add"])}
        if "drop" in request:
            self._collection.delete(ids=request["drop"])
            return {"dropped": len(request["drop"])}
        if "alone" in request:
            others = [row.name for row in self._client.list_collections() if row.name != self._name]
            for name in others:
                self._client.delete_collection(name)
            return {"dropped": len(others)}
        if "ids" in request:
            return {"ids": self._collection.get(include=[])["ids"]}
        result = self._collection.query(
            query_embeddings=self._embedder.embed([request.get("query", "")]),
            n_results=request.get("count", 1),
            include=["distances"],
        )
        pairs = zip(result["ids"][0], result["distances"][0], strict=True)
        return {"hits": [(name, 1.0 - float(distance)) for name, distance in pairs]}

    def _add(self, rows: list[tuple[str, str]]) -> None:
        for start in range(0, len(rows), _BATCH):
            part = rows[start : start + _BATCH]
            self._collection.upsert(
                ids=[name for name, _ in part], embeddings=self._embedder.embed([text for _, text in part])
            )


def _failure(error: Exception) -> VectorReply:
    return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Serve until stdin ends or nothing was asked for a while."""
    kind, place, name, fingerprint, folder, idle_s = sys.argv[1:7]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    try:
        embedder = open_embedder(kind, place or os.environ[ADDRESS], name)
        vectors = Vectors(embedder, fingerprint, folder)
        if kind != "endpoint":  # to which nothing is sent that nobody asks for
            vectors.warm_up()
        stored = vectors.count()
    except Exception as error:  # handed on: libraries and files of other people, and the asker hears why
        print(json.dumps(_failure(error)), file=answers, flush=True)
        raise
    print(json.dumps({"ready": True, "stored": stored}), file=answers, flush=True)
    while select.select([sys.stdin], [], [], float(idle_s))[0]:
        line = sys.stdin.readline()
        if not line:
            return
        try:
            answer = vectors.answer(json.loads(line))
        except Exception as error:  # the outermost frame of a worker: the asker gets the failure as an answer
            answer = _failure(error)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
