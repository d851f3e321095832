"""A generic append-only event log, one JSON object a line: the single source of truth of a run.

An event is one write and one fsync by the holder of the log's lock. A crash can tear only the last line,
and that is cut off on reading. Unknown kinds are the reader's to ignore; a newer schema is refused.
"""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import Field

from stitch_tools.errors import StoreError
from stitch_tools.models.base import Fact
from stitch_tools.storage.locks import FileLock
from stitch_tools.storage.small_file import read_small
from stitch_tools.storage.store import storing, sync_folder

SCHEMA_VERSION = 1
LARGEST_BYTES = 256 << 20
"""Of a whole log. A run leaves some ten kilobytes; one that an agent drives, more with each call."""


class Event(Fact):
    """One line of the log."""

    seq: int
    """0, 1, 2, ... without gaps."""
    at: str
    """UTC time of writing, ISO 8601."""
    kind: str
    """Name of what happened."""
    schema_version: int = SCHEMA_VERSION
    payload: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Small facts and the hashes of blobs that were stored before."""


def parse_events(data: bytes) -> tuple[list[Event], int]:
    """The whole events in `data` and how many bytes they take; a torn or damaged tail is left out.

    Raises:
        StoreError: a line in the middle is damaged, or was written by a newer version.
    """
    events: list[Event] = []
    used = 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1]):
        event = _parse_line(line)
        if event is None or event.seq != len(events):
            if number == len(lines) - 2 and not lines[-1]:
                break  # The last line is whole but damaged: a crash tore a page. Nothing follows it.
            raise StoreError(
                f"event {number} is damaged", hint="restore events.jsonl from a copy, or start a new run"
            )
        events.append(event)
        used += len(line) + 1
    return events, used


def _parse_line(line: bytes) -> Event | None:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    version: object = raw.get("schema_version")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise StoreError(
            f"the log was written by a newer version (schema {version}, this one reads {SCHEMA_VERSION})",
            hint="update stitch-mcp",
        )
    try:
        return Event.model_validate(raw)
    except ValueError:
        return None


def read_events(path: Path) -> list[Event]:
    """The log's events without taking its lock; [] when there is no file.

    Raises:
        StoreError: damaged in the middle, newer schema, or unreadable.
    """
    return parse_events(_read(path))[0]


def _read(path: Path) -> bytes:
    try:
        return read_small(path, LARGEST_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}", hint="check the run folder") from error


def lock_path(path: Path) -> Path:
    """The file whose lock a log's writer holds."""
    return path.with_name(path.name + ".lock")


class EventLog:
    """The log opened for writing, under an exclusive lock beside it (`<name>.lock`)."""

    def __init__(self, path: Path, *, on_event: Callable[[Event], None] | None = None) -> None:
        """Open or make the log.

        Raises:
            LockedError: another process writes to this log.
            StoreError: it cannot be read or written.
        """
        self.path = path
        self._on_event = on_event
        self._lock = FileLock(lock_path(path), purpose="writes this run")
        self._lock.acquire()
        try:
            self.events = self._recover()
            with storing(path):
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._handle = os.open(path, flags, 0o644)
            sync_folder(path.parent)
        except BaseException:  # handed on: the lock must not outlive the attempt
            self._lock.release()
            raise

    def _recover(self) -> list[Event]:
        # Cutting and appending would follow a link, which may have come with a repository, to another file.
        if self.path.is_symlink():
            raise StoreError(f"{self.path} is a link", hint="remove it: a log is written where it lies")
        data = _read(self.path)
        events, used = parse_events(data)
        if used < len(data):
            with storing(self.path):
                os.truncate(self.path, used)
        return events

    def append(self, kind: str, payload: dict[str, Any] | None = None) -> Event:
        """Write one event durably and return it.

        Raises:
            StoreError: the disk is full or the file is gone; nothing half-written remains.
        """
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        event = Event(seq=len(self.events), at=at, kind=kind, payload=payload or {})
        line = event.canonical_json() + b"\n"
        size = os.fstat(self._handle).st_size
        with storing(self.path):
            try:
                written = os.write(self._handle, line)
                if written != len(line):
                    raise OSError(28, "No space left on device")
                os.fsync(self._handle)
                self.events.append(event)
            except BaseException:  # handed on: what interrupts leaves a whole event or none, too
                os.ftruncate(self._handle, size)
                del self.events[event.seq :]
                raise
        if self._on_event:
            self._on_event(event)
        return event

    def close(self) -> None:
        """Release the log; a second call does nothing."""
        if self._lock.held:
            os.close(self._handle)
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
