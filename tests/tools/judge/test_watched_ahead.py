"""The watched worker that is started beside the draws of a check."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import pytest

from stitch_tools.errors import WorkerError
from stitch_tools.judge.work.traced_worker import HarnessFaultError, WatchedWorker
from stitch_tools.judge.work.watched_ahead import WatchedAhead

WORKER = cast("WatchedWorker", object())


class _Starts:
    """Starts WORKER, or fails, and remembers in which threads."""

    def __init__(self, error: Exception | None = None) -> None:
        self.threads: list[threading.Thread] = []
        self.ended = 0
        self._error = error

    @contextmanager
    def __call__(self) -> Generator[WatchedWorker]:
        self.threads.append(threading.current_thread())
        if self._error is not None:
            raise self._error
        yield WORKER
        self.ended += 1


def test_it_is_started_once_beside_the_caller_and_ends_with_the_block() -> None:
    start = _Starts()
    with WatchedAhead(start) as ahead:
        ahead.begin()
        ahead.begin()
        assert ahead.take() is WORKER
        assert not start.ended
    assert start.ended == 1
    (thread,) = start.threads
    assert thread is not threading.current_thread()


def test_one_that_nobody_took_is_ended() -> None:
    start = _Starts()
    with WatchedAhead(start) as ahead:
        ahead.begin()
    assert start.ended == 1


def test_nothing_starts_before_it_is_begun() -> None:
    start = _Starts()
    with WatchedAhead(start) as ahead:
        assert ahead.take() is None
    assert not start.threads


def test_a_profiler_that_cannot_be_started_now_is_left_to_the_caller() -> None:
    with WatchedAhead(_Starts(HarnessFaultError("no room"))) as ahead:
        ahead.begin()
        assert ahead.take() is None


def test_a_failure_of_ours_is_told() -> None:
    with WatchedAhead(_Starts(WorkerError("the zygote is gone"))) as ahead:
        ahead.begin()
        with pytest.raises(WorkerError, match="zygote"):
            ahead.take()
