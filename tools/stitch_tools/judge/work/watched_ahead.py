"""Start the worker that will be watched while another one makes the draws of a check."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.work.traced_worker import HarnessFaultError, RefusedError, WatchedWorker
from stitch_tools.run.child_outcome import ChildDied

_AGAIN = (ChildDied, HarnessFaultError, RefusedError, EnvironmentMissingError)


class WatchedAhead:
    """A watched worker in the making. Use as a context manager: it ends the worker."""

    def __init__(self, start: Callable[[], AbstractContextManager[WatchedWorker]]) -> None:
        """Nothing starts before `begin`; `start` is then called in a thread."""
        self._start = start
        self._stack = ExitStack()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="watched")
        self._begun: Future[WatchedWorker] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        self._stack.close()

    def begin(self) -> None:
        """Start it, unless that was done."""
        if self._begun is None:
            self._begun = self._pool.submit(lambda: self._stack.enter_context(self._start()))

    def take(self) -> WatchedWorker | None:
        """The worker, which loads the program; None where none was begun, or it has to be started again.

        What cannot be started now is started again by the caller, and judged then.
        """
        if self._begun is None:
            return None
        try:
            return self._begun.result()
        except _AGAIN:
            return None
