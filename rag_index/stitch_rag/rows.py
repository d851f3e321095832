"""What the index stores of one chunk: its fields, and the words by which it is found."""

import json
import re
from collections.abc import Sequence

from stitch_rag.chunks import Chunk
from stitch_rag.tokens import index_words, name_words

_DEPRECATED = re.compile(r"\b(?:deprecated|gone on sm_\d+)\b")


def searchable(chunk: Chunk) -> tuple[str, ...]:
    """What the full-text table holds: names, their parts, first sentence, ways to ask, text, surroundings."""
    names = (chunk.symbol, *chunk.aliases)
    title = index_words(chunk.symbol) if chunk.kind in ("note", "section", "group", "diagnostic") else ""
    return (
        " ".join(name.lower() for name in names),
        f"{name_words(names)} {title}".strip(),
        index_words(f"{chunk.brief} {chunk.keywords} {chunk.parent}"),
        "\n".join(map(index_words, chunk.asked)),
        index_words(f"{chunk.signature}\n{chunk.text}"),
        index_words(f"{chunk.library} {chunk.source} {' '.join(chunk.architectures)}"),
    )


def stored_fields(chunk: Chunk) -> tuple[object, ...]:
    """Its columns, in the order of the store."""
    return (
        chunk.chunk_id,
        chunk.symbol,
        chunk.kind,
        chunk.library,
        chunk.version,
        chunk.signature,
        chunk.brief,
        chunk.text,
        chunk.path,
        chunk.line,
        chunk.parent,
        chunk.source,
        _listed(chunk.aliases),
        _listed(chunk.architectures),
        chunk.keywords,
        _listed(chunk.asked),
        _is_deprecated(chunk),
    )


def _listed(values: Sequence[str]) -> str:
    return json.dumps(values) if values else "[]"


def _is_deprecated(chunk: Chunk) -> bool:
    text = f"{chunk.brief} {chunk.text[:300]} {chunk.signature}".lower()
    # Looking for the plain words first takes a tenth of the time.
    return ("deprecated" in text or "gone on" in text) and _DEPRECATED.search(text) is not None
