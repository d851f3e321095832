"""Similarity of meaning for one reader, and the child process that knows it."""

import time
from collections.abc import Callable, Mapping

from stitch_rag.index_location import IndexLocation
from stitch_rag.question import LONGEST_QUESTION
from stitch_rag.results import SearchMode
from stitch_rag.store import IndexStore
from stitch_rag.tokens import storable
from stitch_rag.vectors.client import VectorChild
from stitch_rag.vectors.model import EmbeddingModel, find_model, why_no_model

NEAREST = 200
"""Vectors that are looked at for a question; an entry may have several."""
MODEL_KEY = "model"
"""Under which an index holds the fingerprint of the model of its vectors."""
NO_MODEL = "the vectors of this index are not used: "
"""Before what is missing."""
NOT_ANSWERED = "words alone were searched, for the embedding model failed: "
"""Before what it said."""
REPAIRS = "`stitch-mcp index build` tries again, and makes damaged vectors anew"
ENDED = "its process ended"
KILLED = "its process was killed while it loaded, for want of memory perhaps; a later search starts another"
NO_VECTORS = "no vectors were built: `stitch-mcp index build --vectors` makes them"
OTHER_MODEL = (
    "the vectors of this index are another model's and are not used: `stitch-mcp index build` makes new ones"
)
STARTING = "the embedding model is starting: the same search may find more in some seconds"
NOT_ASKED = "vectors were not asked: `--meaning` asks them, too, in some seconds"
MAKES_REST = "`stitch-mcp index build --vectors` makes the rest"
_RETRY_S = 600.0
"""After a child that was of no use: each start costs ten seconds of a processor."""
_KILLED_RETRY_S = 30.0
"""... that others killed: what they did it for may have passed."""


class Meaning:
    """The child process of one reader: started by the first question that profits, and again if it ended."""

    def __init__(
        self,
        place: IndexLocation,
        wait_s: float,
        *,
        retry_s: float = _RETRY_S,
        killed_retry_s: float = _KILLED_RETRY_S,
    ) -> None:
        self._place = place
        self._wait_s = wait_s
        self._retry_s = retry_s
        self._killed_retry_s = killed_retry_s
        self._child: VectorChild | None = None
        self._not_before = 0.0
        self._absent = self._failed = ""
        self._incomplete: tuple[str, ...] | None = None
        """What is to be said of vectors that are missing; None: the child was not ready yet."""
        self._asked = self._loading = False
        self._due: EmbeddingModel | None = None
        """Of a child that a question asked for, and that is not started yet."""

    def ask(self, store: IndexStore, query: str) -> Callable[[], dict[int, float]]:
        """Begin to look for what is similar; the child works while the words are looked up.

        Returns:
            what waits for the answer, to be called once before the next question: similarity by chunk
            number, the nearest first; empty where there are no vectors, or not yet.
        """
        self._asked = True
        child = None if self._absent else self._running(store)
        self._loading = child is None and self._due is not None
        if child is None:
            return dict
        if not child.ready(wait_s=self._wait_s):
            self._loading = child.alive and not child.reason
            if not self._loading:
                self._failed = _why_not(child)
            return dict
        if self._incomplete is None:
            self._incomplete = not_all(child.stored, store.count_vectors())
        answered = child.begin_query(storable(query[:LONGEST_QUESTION]), NEAREST)

        def near() -> dict[int, float]:
            distances = answered()
            self._failed = f"{NOT_ANSWERED}{child.reason}" if distances is None and child.reason else ""
            return _by_number(store, distances or {})

        return near

    @property
    def absent(self) -> str:
        """Why vectors are, or were, not used; "" where they are, or where nobody built or waits for them."""
        if self._wait_s and not self._place.vectors.is_dir():
            return NO_VECTORS
        return self._absent or self._failed

    def notices(self, mode: SearchMode) -> tuple[str, ...]:
        """The notices to add to an answer; call it once after the answer."""
        asked, self._asked = self._asked, False
        if mode == "lexical" and self.absent:
            return (self.absent,)
        if asked and self._loading:
            return (STARTING,)
        return (self._incomplete or ()) if asked else ()

    def close(self) -> None:
        """End the child process, if there is one; the next question may start another."""
        if self._child is not None:
            self._child.close()
        self._child = self._due = None
        self._absent, self._failed, self._not_before, self._incomplete = "", "", 0.0, None

    def _running(self, store: IndexStore) -> VectorChild | None:
        if self._child is not None and self._child.alive:
            return self._child
        if self._child is not None:
            if self._child.broken:
                self._child.ready()  # takes in what it said before it ended
                wait_s = self._killed_retry_s if self._child.killed else self._retry_s
                self._failed, self._not_before = _why_not(self._child), time.monotonic() + wait_s
            self._child.close()
            self._child = None
        self._due = self._wanted(store)
        if self._wait_s:
            self.start()
        return self._child

    def _wanted(self, store: IndexStore) -> EmbeddingModel | None:
        """The model of a child that is to be started; None where it is not, or not now."""
        if time.monotonic() < self._not_before or not self._place.vectors.is_dir():
            return None
        if not store.count_vectors():  # a first build of them was cut short
            self._failed = NO_VECTORS
            return None
        model = find_model()
        # Looked for once: installing it needs a new process anyway.
        if model is None:
            self._absent = f"{NO_MODEL}{why_no_model()}"
        elif store.meta(MODEL_KEY) not in (None, model.fingerprint):
            self._absent = OTHER_MODEL
        return None if self._absent else model

    def start(self) -> None:
        """Start the child that the last question asked for, if there is none.

        Where nobody waits for it this is done after the answer, which would share the processors with it.
        """
        model, self._due = self._due, None
        if model is None:
            return
        try:
            self._child = VectorChild(model, self._place.vectors)
            self._failed, self._incomplete = "", None
        except OSError as error:  # there is no room for another process now
            self._failed = f"{NOT_ANSWERED}it cannot be started: {error}"
            self._not_before = time.monotonic() + self._retry_s


class NoMeaning:
    """In the place of `Meaning` where vectors are not asked: says so where they may have helped."""

    def __init__(self, place: IndexLocation) -> None:
        self._place = place
        self._asked = False

    def ask(self, store: IndexStore, query: str) -> Callable[[], dict[int, float]]:
        """Nothing is similar."""
        self._asked = self._place.vectors.is_dir() and store.count_vectors() > 0
        return dict

    def notices(self, mode: SearchMode) -> tuple[str, ...]:
        """The notices to add to an answer; call it once after the answer."""
        asked, self._asked = self._asked, False
        return (NOT_ASKED,) if asked else ()

    def start(self) -> None:
        """There is nothing to start."""

    def close(self) -> None:
        """There is nothing to end."""


def not_all(there: int, wanted: int) -> tuple[str, ...]:
    """A sentence where vectors of an index are missing."""
    return (f"{there} of {wanted} vectors are there: {MAKES_REST}",) if there < wanted else ()


def _why_not(child: VectorChild) -> str:
    """What a search says where the child never answered."""
    if child.killed:
        return f"{NOT_ANSWERED}{KILLED}"
    return f"{NOT_ANSWERED}{child.reason or ENDED}; {REPAIRS}"


def _by_number(store: IndexStore, distances: Mapping[str, float]) -> dict[int, float]:
    numbers = store.by_vector(list(distances))
    similar: dict[int, float] = {}
    for name, value in distances.items():  # the nearest first
        if name in numbers:
            similar.setdefault(numbers[name], max(0.0, value))
    return similar
