"""Which text of an entry is embedded, and how the collection follows the index."""

from collections.abc import Callable, Iterator

from stitch_rag.chunks import Chunk
from stitch_rag.store import IndexStore
from stitch_rag.tokens import identifiers, parts
from stitch_rag.vectors.client import START_S, VectorChild
from stitch_tools.models.base import sha256_hex

_LONGEST = 700
_BATCH = 512
_LEFT_OUT = frozenset(("cupti", "cute", "cutlass", "nvvm"))
"""Libraries whose entries are found by name only: they would be half of the vectors and drown the rest."""


def embedded_text(chunk: Chunk) -> str:
    """Name, its parts as words, first sentence and the beginning of the text."""
    words = " ".join(part for name in identifiers(chunk.symbol) for part in parts(name))
    return f"{chunk.symbol} ({words}). {chunk.brief} {chunk.keywords} {chunk.text}"[:_LONGEST]


def vector_id(chunk: Chunk) -> str:
    """Names the vector: the same text of the same entry has the same id."""
    return sha256_hex(f"{chunk.chunk_id}\0{embedded_text(chunk)}".encode())[:40]


def worth_embedding(chunk: Chunk) -> bool:
    """Whether meaning can find this entry: it says something."""
    return bool(chunk.brief) and chunk.library not in _LEFT_OUT


def follow(store: IndexStore, child: VectorChild, progress: Callable[[str], None]) -> int | None:
    """How many vectors were made; those of entries that are gone are removed. None where the child failed."""
    if not child.ready(wait_s=START_S):
        return None
    there = child.ids()
    if there is None:
        return None
    wanted = dict(_wanted(store))
    stale = sorted(there - wanted.keys())
    for start in range(0, len(stale), _BATCH):
        if not child.drop(stale[start : start + _BATCH]):
            return None
    missing = [(name, text) for name, text in wanted.items() if name not in there]
    for start in range(0, len(missing), _BATCH):
        progress(f"{start} of {len(missing)} vectors")
        if not child.add(missing[start : start + _BATCH]):
            return None
    return len(missing)


def _wanted(store: IndexStore) -> Iterator[tuple[str, str]]:
    for row in store.rows():
        if worth_embedding(row.chunk):
            yield vector_id(row.chunk), embedded_text(row.chunk)
