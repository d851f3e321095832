"""Searches the newest index: one that a build swapped in is noticed, and without any the notes answer."""

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from stitch_rag.index_errors import DamagedIndexError, telling_faults
from stitch_rag.index_location import IndexLocation
from stitch_rag.results import Hit, SearchResult
from stitch_rag.search import DEFAULT_TOKENS, Filters, entry, search
from stitch_rag.store import IndexStore
from stitch_rag.vectors.meaning import Meaning, NoMeaning
from stitch_tools.errors import StoreError, UsageError

HOW_TO_BUILD = "only our notes were searched: `stitch-mcp index build` adds the CUDA headers of this machine"
DAMAGED = "only our notes were searched: the index cannot be read, `stitch-mcp index build` makes it anew"
UNREADABLE = "only our notes were searched: the index cannot be read now, a later search tries it again"
STALE = "files of these hits changed or went after the index was built: `stitch-mcp index build` reads anew"
_RETRY_S = 5.0
"""After a fault that may pass: a file that another process locks costs each try two seconds."""
T = TypeVar("T")


class Reader:
    """Answers questions; holds one open SQLite file and nothing else. For one thread at a time.

    Where vectors were built, the first question that profits has a child process started after its answer,
    which holds the embedding model; until that is ready, answers are lexical and say so. It ends when nothing
    is asked for a while.
    """

    def __init__(
        self,
        cache_dir: Path | None = None,
        *,
        wait_for_vectors_s: float = 0.0,
        meaning: bool = True,
        retry_s: float = _RETRY_S,
    ) -> None:
        """Nothing is opened or started before the first question.

        Args:
            cache_dir: the cache folder; None is the user's.
            wait_for_vectors_s: how long a question may wait for the embedding model to load.
            meaning: whether vectors may be asked. A reader of one question that waits for nothing would start
                a process only to end it.
            retry_s: time for which the notes answer alone where an index that is not damaged cannot be read.
        """
        self._place = IndexLocation(cache_dir)
        self._meaning = Meaning(self._place, wait_for_vectors_s) if meaning else NoMeaning(self._place)
        self._store: IndexStore | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._retry_s = retry_s
        self._again_at: float | None = None
        """When the index is tried again; None: when it is another one."""
        self._notes: IndexStore | None = None
        self._notices: tuple[str, ...] = ()
        """Why the notes answer alone."""

    def search(
        self, query: str, *, count: int = 8, max_tokens: int = DEFAULT_TOKENS, filters: Filters | None = None
    ) -> SearchResult:
        """The best hits for `query`; arguments and errors as in `search.search`."""
        started, meaning = time.perf_counter(), self._meaning

        def ask(store: IndexStore) -> SearchResult:
            alone = bool(self._notices)
            return search(
                store,
                query,
                count=count,
                max_tokens=max_tokens,
                filters=filters,
                mode="notes" if alone else "lexical",
                ask_meaning=None if alone else partial(meaning.ask, store, query),
                notices=self._notices,
            )

        result = self._newest(ask)
        stale = (STALE,) if self._is_stale(result.hits) else ()
        took_ms = round((time.perf_counter() - started) * 1e3, 2)
        meaning.start()
        notices = (*meaning.notices(result.mode), *stale)
        return result.model_copy(update={"duration_ms": took_ms, "notices": (*result.notices, *notices)})

    def entry(self, chunk_id: str) -> Hit:
        """One entry in full.

        Raises:
            UsageError: there is no such entry; the hint says so where only notes were asked.
        """
        try:
            return self._newest(lambda store: entry(store, chunk_id))
        except UsageError as error:
            if not self._notices:
                raise
            raise UsageError(error.message, hint=f"{'; '.join(self._notices)}; {error.hint}") from error

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
        if self._notes is not None:
            self._notes.close()
        self._notes = None

    def _close_store(self) -> None:
        if self._store is not None and self._store is not self._notes:
            self._store.close()
        self._store = self._stamp = self._again_at = None

    def _newest(self, question: Callable[[IndexStore], T]) -> T:
        """What the newest index answers; where it cannot be read, the notes do for a while."""
        store = self._open()
        try:
            with telling_faults():
                return question(store)
        except StoreError as error:
            if self._notices:
                raise
            # Kept over the closing, or each question would try the same broken file again.
            stamp = self._stamp
            self._close_store()
            self._stamp = stamp
            store = self._notes_for(error)
        return question(store)

    def _open(self) -> IndexStore:
        stamp = self._stamp_of_file()
        again = self._again_at is not None and time.monotonic() >= self._again_at
        if self._store is None or stamp != self._stamp or again:
            # A build swaps the file in by rename, so another inode means another index.
            if self._store is not None and stamp != self._stamp:
                self._meaning.close()  # a process that runs does not see what a build did to the vectors
            self._close_store()
            self._stamp = stamp
            try:
                opened = IndexStore.open(self._place.index) if stamp else None
            except StoreError as error:
                return self._notes_for(error)
            self._notices = () if opened else (HOW_TO_BUILD,)
            self._store = opened or self._own_notes()
        return self._store

    def _notes_for(self, fault: StoreError) -> IndexStore:
        """The notes alone: for some seconds where the fault may pass, else until another index is built."""
        damaged = isinstance(fault, DamagedIndexError)
        self._again_at = None if damaged else time.monotonic() + self._retry_s
        self._notices = (DAMAGED if damaged else UNREADABLE,)
        self._store = self._own_notes()
        return self._store

    def _own_notes(self) -> IndexStore:
        # Kept: an index that fails now and then would have them read each time.
        if self._notes is None:
            self._notes = _notes_alone()
        return self._notes

    def _is_stale(self, hits: Sequence[Hit]) -> bool:
        """Whether a file that a hit was read from is gone, or newer than the index."""
        if self._notices or self._stamp is None:
            return False
        # Pages were stored whole: what becomes of their files is no matter. Some paths had to be spelled out.
        paths = {hit.path for hit in hits if hit.path.startswith(os.sep) and hit.kind != "section"}
        paths = {path for path in paths if "\\ud" not in path}
        return any(_changed_at(path) > self._stamp[2] for path in paths)

    def _stamp_of_file(self) -> tuple[int, int, int] | None:
        try:
            stat = self._place.index.stat()
        except OSError:
            return None
        # The second also tells that permissions were mended.
        return stat.st_ino, stat.st_ctime_ns, stat.st_mtime_ns


def _notes_alone() -> IndexStore:
    # Whoever has an index need not wait for it, nor this for what reads headers and pages.
    from stitch_rag.shipped import OWN

    store = IndexStore.create()
    for place, read in OWN.items():
        store.put_file(place, "", read())
    store.finish()
    return store


def _changed_at(path: str) -> float:
    """When a file changed, in nanoseconds; of one that is gone, just now."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return math.inf
