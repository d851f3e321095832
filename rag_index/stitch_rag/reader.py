"""Searches the newest index: one that a build swapped in is noticed, and without any the notes answer."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from stitch_rag.inputs import own_inputs
from stitch_rag.place import IndexPlace
from stitch_rag.results import Hit, SearchResult
from stitch_rag.search import DEFAULT_TOKENS, Filters, entry, search
from stitch_rag.store import IndexStore
from stitch_rag.vectors.meaning import Meaning

HOW_TO_BUILD = "only our notes were searched: `stitch-mcp index build` adds the CUDA headers of this machine"


class Reader:
    """Answers questions; holds one open SQLite file and nothing else. For one thread at a time.

    Where vectors were built, the first question that profits starts a child process that holds the embedding
    model; until that is ready, answers are lexical. It ends when nothing is asked for a while.
    """

    def __init__(self, cache_dir: Path | None = None, *, wait_for_vectors_s: float = 0.0) -> None:
        """Nothing is opened or started before the first question.

        Args:
            cache_dir: the cache folder; None is the user's.
            wait_for_vectors_s: how long a question may wait for the embedding model to load.
        """
        self._place = IndexPlace(cache_dir)
        self._meaning = Meaning(self._place, wait_for_vectors_s)
        self._store: IndexStore | None = None
        self._stamp: tuple[int, int] | None = None

    def search(
        self, query: str, *, count: int = 8, max_tokens: int = DEFAULT_TOKENS, filters: Filters | None = None
    ) -> SearchResult:
        """The best hits for `query`; arguments and errors as in `search.search`."""
        started = time.perf_counter()
        store, indexed = self._open()
        found = search(
            store,
            query,
            count=count,
            max_tokens=max_tokens,
            filters=filters,
            mode="lexical" if indexed else "notes",
            ask_meaning=partial(self._meaning.ask, store, query) if indexed else None,
            notices=() if indexed else (HOW_TO_BUILD,),
        )
        return found.model_copy(update={"duration_ms": round((time.perf_counter() - started) * 1e3, 2)})

    def entry(self, chunk_id: str) -> Hit:
        """One entry in full.

        Raises:
            UsageError: there is no such entry; the hint names the nearest.
        """
        return entry(self._open()[0], chunk_id)

    def resolve(self, queries: Sequence[str], *, count: int = 2, max_tokens: int = 800) -> list[SearchResult]:
        """The best hits for the `doc_query` of each diagnostic, each question once, in order."""
        return [
            self.search(query, count=count, max_tokens=max_tokens)
            for query in dict.fromkeys(query for query in queries if query.strip())
        ]

    def close(self) -> None:
        """Close the index and end the child process; the next question opens both again."""
        self._meaning.close()
        self._close_store()

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store = self._stamp = None

    def _open(self) -> tuple[IndexStore, bool]:
        """The store, and whether it is an index rather than the notes alone."""
        stamp = self._stamp_of_file()
        if self._store is None or stamp != self._stamp:
            self._close_store()
            opened = IndexStore.open(self._place.index) if stamp else None
            self._store, self._stamp = opened or _notes_alone(), stamp if opened else None
            if stamp and opened is None:
                # A damaged index: the notes answer, and each question looks again.
                self._stamp = (-1, -1)
        return self._store, self._stamp not in (None, (-1, -1))

    def _stamp_of_file(self) -> tuple[int, int] | None:
        try:
            found = self._place.index.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


def _notes_alone() -> IndexStore:
    store = IndexStore.create()
    for row in own_inputs():
        store.put_file(row.place, row.sha256, row.read())
    store.finish()
    return store
