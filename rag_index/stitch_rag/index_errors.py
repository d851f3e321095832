"""SQLite's failures as ours: a full disk is one thing, a damaged file another."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from stitch_tools.errors import StoreError

_WAIT = "another program holds the file: try again when it is done"
_ROOM = "free some space or set STITCH_CACHE_DIR to another folder, then `stitch-mcp index build`"


class DamagedIndexError(StoreError):
    """The index holds what cannot be read; a build makes it anew."""


@contextmanager
def telling_faults(path: Path | None = None) -> Generator[None]:
    """Makes SQLite's failures inside ours.

    Raises:
        DamagedIndexError: what is stored makes no sense.
        StoreError: the disk is full, or the file can be neither read nor written now.
    """
    place = f" {path}" if path else ""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if _of_the_system(error):
            message = f"the documentation index{place} can be neither read nor written: {error}"
            raise StoreError(message, hint=_WAIT if _is_held(error) else _ROOM) from error
        raise DamagedIndexError(
            f"the documentation index{place} is damaged: {error}",
            hint="`stitch-mcp index build` makes it anew",
        ) from error


def _of_the_system(error: sqlite3.DatabaseError) -> bool:
    """Whether the system failed, and not what is stored.

    In Python a text that is none is an OperationalError, too, without a code; a table that is missing has
    SQLite's general one.
    """
    return isinstance(error, sqlite3.OperationalError) and _code(error) != sqlite3.SQLITE_ERROR


def _is_held(error: sqlite3.DatabaseError) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: sqlite3.DatabaseError) -> int:
    """SQLite's code without what it adds to it; the general one where Python raised the error."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
