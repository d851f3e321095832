"""Turns texts into vectors: by a local model, or by an endpoint that speaks OpenAI's protocol.

Used in the child process only: both bring heavy imports.
"""

import importlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from stitch_rag.vectors.adapter import adapt, adapter_for

KEY = "STITCH_EMBEDDING_KEY"
"""Environment variable with the endpoint's key: never an argument, never stored, never printed."""
_BATCH = 64
_TIME_LIMIT_S = 60.0
_RETRIES = 1


class Embedder(Protocol):
    """Vectors of length 1 for texts."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in order."""
        ...


class LocalModel:
    """A sentence-transformers model in a folder, with our adapter where it fits. Nothing is downloaded."""

    def __init__(self, folder: str) -> None:
        """Loads the model; takes seconds."""
        os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
        transformers = importlib.import_module("sentence_transformers")
        self._model = transformers.SentenceTransformer(folder, device="cpu")
        adapter = adapter_for(Path(folder))
        if adapter is not None:
            adapt(self._model, adapter)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in order."""
        vectors = self._model.encode(
            list(texts), batch_size=_BATCH, normalize_embeddings=True, show_progress_bar=False
        )
        return vectors.tolist()


class Endpoint:
    """A model behind an address, as OpenAI, vLLM, llama.cpp, Ollama and others serve it."""

    def __init__(self, address: str, model: str, env: Mapping[str, str] | None = None) -> None:
        """Connects at the first question.

        Args:
            address: base address, with /v1 where the server has it.
            model: its name there.
            env: where the key is looked up; None is this process's environment.
        """
        from openai import OpenAI

        self._model = model
        self._key = (os.environ if env is None else env).get(KEY, "")
        # A server of one's own asks for no key, but the client insists on some text.
        self._client = OpenAI(
            base_url=address, api_key=self._key or "none", timeout=_TIME_LIMIT_S, max_retries=_RETRIES
        )

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in order.

        Raises:
            RuntimeError: the endpoint failed; the message never holds the key.
        """
        from openai import OpenAIError

        vectors: list[list[float]] = []
        try:
            for start in range(0, len(texts), _BATCH):
                part = list(texts[start : start + _BATCH])
                answer = self._client.embeddings.create(
                    model=self._model, input=part, encoding_format="float"
                )
                # The protocol numbers the vectors and promises no order.
                rows = sorted(answer.data, key=lambda row: row.index)
                vectors += [_unit(row.embedding) for row in rows]
        except OpenAIError as error:
            raise RuntimeError(self._without_key(f"{type(error).__name__}: {error}")) from None
        if len(vectors) != len(texts):
            raise RuntimeError(f"the endpoint gave {len(vectors)} vectors for {len(texts)} texts")
        return vectors

    def _without_key(self, text: str) -> str:
        """Servers like to repeat the key that they refuse."""
        return text.replace(self._key, "(key)") if self._key else text


def open_embedder(kind: str, place: str, name: str) -> Embedder:
    """The embedder of an `EmbeddingModel`."""
    return Endpoint(place, name) if kind == "endpoint" else LocalModel(place)


def _unit(vector: Sequence[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / length for value in vector]
