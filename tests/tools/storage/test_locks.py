"""Whoever looks at a lock does not keep others from it; its holder does."""

import threading
from pathlib import Path

import pytest

from stitch_tools.errors import LockedError
from stitch_tools.storage.locks import FileLock, holder


def test_a_lock_that_others_look_at_all_the_time_can_be_taken_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            holder(path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    with FileLock(path):
        for looker in lookers:
            looker.start()
    try:
        for _ in range(200):
            _take(path)
    finally:
        ended.set()
        for looker in lookers:
            looker.join()


def _take(path: Path) -> None:
    with FileLock(path, purpose="is taken"):
        assert "is taken" in holder(path)


def test_a_held_lock_names_its_holder_to_those_that_want_it_and_those_that_look(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder(path) == ""
    with FileLock(path, purpose="works"):
        assert "works" in holder(path)
        with pytest.raises(LockedError, match="works"):
            FileLock(path).acquire()
    assert holder(path) == ""
