"""Which text of an entry is embedded, and how the collection follows the index."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from stitch_rag.chunks import Chunk
from stitch_rag.store import IndexStore
from stitch_rag.tokens import identifiers, parts
from stitch_rag.vectors.client import START_S, VectorChild
from stitch_tools.models.base import sha256_hex

_LONGEST = 350
"""Characters: what follows the beginning blurs the meaning, and takes most of the time."""
_BATCH = 512
_LEFT_OUT = frozenset(("cupti", "cute", "cutlass", "nvvm"))
"""Libraries whose entries are found by name only: they would be half of the vectors and drown the rest."""
_SAID_SINGLY = frozenset(("note", "diagnostic"))
"""Kinds whose text is long: their first sentence has a vector of its own."""


def in_words(symbol: str) -> str:
    """A name as words: `cudaMallocAsync` is "cuda malloc async"."""
    return " ".join(part for name in identifiers(symbol) for part in parts(name))


def embedded_texts(chunk: Chunk) -> list[str]:
    """What is embedded of an entry: name in words with the beginning of what it says, and each way to ask."""
    titled = chunk.kind in ("note", "section", "diagnostic")
    title = chunk.symbol if titled else in_words(chunk.symbol)
    texts = [f"{title}: {chunk.brief} {chunk.keywords} {chunk.text}", *chunk.asked]
    if chunk.kind in _SAID_SINGLY:
        texts += [chunk.symbol, chunk.brief]
    return list(dict.fromkeys(text[:_LONGEST] for text in texts))


def vectors_of(chunk: Chunk) -> dict[str, str]:
    """Id and text of each vector of an entry: the same text of the same entry has the same id."""
    return {sha256_hex(f"{chunk.chunk_id}\0{text}".encode())[:40]: text for text in embedded_texts(chunk)}


def worth_embedding(chunk: Chunk) -> bool:
    """Whether meaning can find this entry: it says something."""
    return bool(chunk.brief or chunk.asked) and chunk.library not in _LEFT_OUT


def wanted_vectors(store: IndexStore) -> Iterator[tuple[str, str, int]]:
    """Id, text and number of the entry of each vector that the index is to have."""
    for row in store.rows():
        if worth_embedding(row.chunk):
            for name, text in vectors_of(row.chunk).items():
                yield name, text, row.number


class _Pace:
    """Reports the progress and the remaining time at intervals."""

    def __init__(
        self, rows: Sequence[tuple[str, str]], progress: Callable[[str], None], every_s: float
    ) -> None:
        # Long texts come last and take longer: time goes with the letters.
        self._letters = list(itertools.accumulate((len(text) for _, text in rows), initial=0))
        self._progress, self._every_s = progress, every_s
        self._began = time.monotonic()
        self._told: float | None = None

    def tell(self, done: int) -> None:
        """Report at the start, and then at most once in `every_s` seconds."""
        now = time.monotonic()
        if self._told is not None and now - self._told < self._every_s:
            return
        self._told = now
        message = f"{done} of {len(self._letters) - 1} vectors"
        if done:
            share = self._letters[done] / self._letters[-1]
            message += f", about {(now - self._began) * (1 / share - 1):.0f} s left"
        self._progress(message)


class CollectionError(Exception):
    """The child does not start, or what is stored cannot be read."""


def follow(
    wanted: Mapping[str, str],
    child: VectorChild,
    progress: Callable[[str], None],
    *,
    tell_every_s: float = 10.0,
) -> int | None:
    """How many vectors were made of the texts by id; others are removed. None where the child failed.

    Raises:
        CollectionError: nothing can be said of the vectors that are stored.
    """
    if not child.ready(wait_s=START_S) or (there := child.ids()) is None:
        raise CollectionError
    stale = sorted(there - wanted.keys())
    for start in range(0, len(stale), _BATCH):
        if not child.drop(stale[start : start + _BATCH]):
            return None
    # Texts of one length go together: the model pads a batch to its longest.
    missing = sorted((row for row in wanted.items() if row[0] not in there), key=lambda row: len(row[1]))
    pace = _Pace(missing, progress, tell_every_s)
    for start in range(0, len(missing), _BATCH):
        pace.tell(start)
        if not child.add(missing[start : start + _BATCH]):
            return None
    if wanted and child.query(next(iter(wanted.values())), 1) is None:
        raise CollectionError
    child.leave_alone()  # if it fails they only take room
    return len(missing)
