"""Similarity of meaning for one reader, and the child process that knows it."""

from collections.abc import Callable, Mapping

from stitch_rag.place import IndexPlace
from stitch_rag.question import LONGEST_QUESTION
from stitch_rag.store import IndexStore
from stitch_rag.vectors.client import VectorChild
from stitch_rag.vectors.model import find_model

NEAREST = 200
"""Vectors that are looked at for a question; an entry may have several."""


class Meaning:
    """The child process of one reader: started by the first question that profits, and again if it ended."""

    def __init__(self, place: IndexPlace, wait_s: float) -> None:
        self._place = place
        self._wait_s = wait_s
        self._child: VectorChild | None = None
        self._absent = False

    def ask(self, store: IndexStore, query: str) -> Callable[[], dict[int, float]]:
        """Begin to look for what is similar; the child works while the words are looked up.

        Returns:
            what waits for the answer, to be called once before the next question: similarity by chunk
            number, the nearest first; empty where there are no vectors, or not yet.
        """
        child = None if self._absent else self._running()
        if child is None or not child.ready(wait_s=self._wait_s):
            return dict
        answered = child.begin_query(query[:LONGEST_QUESTION], NEAREST)
        return lambda: _by_number(store, answered() or {})

    def close(self) -> None:
        """End the child process, if there is one."""
        if self._child is not None:
            self._child.close()
        self._child = None

    def _running(self) -> VectorChild | None:
        if self._child is not None and self._child.alive:
            return self._child
        self.close()
        if not self._place.vectors.is_dir():
            return None
        model = find_model()
        if model is None:
            self._absent = True  # looked for once: installing it needs a new process anyway
            return None
        self._child = VectorChild(model, self._place.vectors)
        return self._child


def _by_number(store: IndexStore, found: Mapping[str, float]) -> dict[int, float]:
    numbers = store.by_vector(list(found))
    similar: dict[int, float] = {}
    for name, value in found.items():  # the nearest first
        if name in numbers:
            similar.setdefault(numbers[name], max(0.0, value))
    return similar
