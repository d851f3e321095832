"""SQLite's failures as ours: a full disk is one thing, a damaged file another."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from stitch_tools.errors import StoreError

_ROOM = "free some space or set STITCH_CACHE_DIR to another folder, then `stitch-mcp index build`"


class DamagedIndexError(StoreError):
    """The index holds what cannot be read; a build makes it anew."""


@contextmanager
def telling_faults(path: Path | None = None) -> Generator[None]:
    """Makes SQLite's failures inside ours.

    Raises:
        DamagedIndexError: what is stored makes no sense.
        StoreError: the disk is full, or the file can be neither read nor written.
    """
    place = f" {path}" if path else ""
    try:
        yield
    except sqlite3.DatabaseError as error:
        # A failure of the system is an OperationalError, and so is, in Python, a text that is none.
        if isinstance(error, sqlite3.OperationalError) and "decode" not in str(error):
            said = f"the documentation index{place} can be neither read nor written: {error}"
            raise StoreError(said, hint=_ROOM) from error
        raise DamagedIndexError(
            f"the documentation index{place} is damaged: {error}",
            hint="`stitch-mcp index build` makes it anew",
        ) from error
