"""A recording in nsys's sqlite tables, read into plain records.

The file was written beside a program that nobody trusts: it is opened read-only, its schema is not trusted,
and its size and the time of each query are bounded.
"""

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Direction = Literal["host_to_device", "device_to_host", "device_to_device", "fill", "other"]
MOST_BYTES = 1 << 30
"""Larger recordings are not read."""
_READ_LIMIT_S = 60.0
_MOST_ROWS = 3_000_000
_STEPS_BETWEEN_LOOKS = 100_000
_VERSION = re.compile(r"_v\d+$")
_PUSH_POP = 59
# Used where a recording has no tables of its own for these numbers.
_MEMORY_KINDS = {0: "pageable", 1: "pinned", 2: "device", 3: "array", 4: "managed"}
_DIRECTIONS: dict[int, Direction] = {1: "host_to_device", 2: "device_to_host", 8: "device_to_device"}


class DamagedTraceError(Exception):
    """The recording cannot be read: cut off, no database, or not one of nsys's."""


@dataclass(frozen=True, slots=True)
class DeviceActivity:
    """A kernel, copy or fill that ran on the device."""

    kind: Literal["kernel", "copy", "fill"]
    name: str
    start_ns: int
    end_ns: int
    correlation: int
    stream: int = 0
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    graph_node: int | None = None
    bytes: int = 0
    direction: Direction = "other"
    pageable: bool | None = None
    """Whether the host's memory was not pinned; None where none takes part."""


@dataclass(frozen=True, slots=True)
class HostActivity:
    """A call into the CUDA runtime or driver."""

    name: str
    start_ns: int
    end_ns: int
    correlation: int
    thread: int = 0


@dataclass(frozen=True, slots=True)
class NamedRange:
    """A range that one thread opened and closed."""

    text: str
    start_ns: int
    end_ns: int
    thread: int = 0


@dataclass(frozen=True)
class RecordedTrace:
    """One recording, each list by start."""

    device: tuple[DeviceActivity, ...]
    host: tuple[HostActivity, ...]
    ranges: tuple[NamedRange, ...]

    def named(self, text: str) -> list[NamedRange]:
        """The ranges of one name."""
        return [row for row in self.ranges if row.text == text]


def read_trace(path: Path) -> RecordedTrace:
    """The records of a recording.

    Raises:
        DamagedTraceError: it cannot be read.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as tables:
            tables.execute("PRAGMA trusted_schema = OFF")
            tables.execute("PRAGMA query_only = ON")
            tables.text_factory = _text
            deadline = time.monotonic() + _READ_LIMIT_S
            tables.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
            reader = _Reader(tables)
            device = sorted(reader.device(), key=lambda row: row.start_ns)
            host = sorted(reader.host(), key=lambda row: row.start_ns)
            # Of two that begin together the longer is the outer one.
            ranges = sorted(reader.ranges(), key=lambda row: (row.start_ns, -row.end_ns))
            return RecordedTrace(tuple(device), tuple(host), tuple(ranges))
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise DamagedTraceError(str(error)[:300]) from error


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


class _Reader:
    """The queries. A table that is missing held nothing: nsys leaves empty ones out."""

    def __init__(self, tables: sqlite3.Connection) -> None:
        self._tables = tables
        names = tables.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self._names = {str(row[0]) for row in names}
        if "StringIds" not in self._names:
            raise DamagedTraceError("there is no table StringIds: not a recording of nsys")
        self._strings: dict[int, str] = dict(tables.execute("SELECT id, value FROM StringIds"))

    def _rows(
        self, table: str, columns: Sequence[str], optional: Sequence[str] = ()
    ) -> Iterator[tuple[Any, ...]]:
        if table not in self._names:
            return iter(())
        present = {str(row[1]) for row in self._tables.execute(f"PRAGMA table_info({table})")}
        # Other versions of nsys lack a column, or call it otherwise: what it says is unknown then.
        words = [*columns, *(name if name in present else f"NULL AS {name}" for name in optional)]
        chosen = ", ".join(words)
        return iter(self._tables.execute(f"SELECT {chosen} FROM {table} LIMIT {_MOST_ROWS}"))

    def _enumeration(self, table: str) -> dict[int, str]:
        if table not in self._names:
            return {}
        rows = self._tables.execute(f"SELECT id, label FROM {table}")
        return {int(number): str(label) for number, label in rows}

    def device(self) -> Iterator[DeviceActivity]:
        yield from self._kernels()
        yield from self._copies()
        fills = self._rows(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            ("start", "end"),
            ("correlationId", "streamId", "bytes"),
        )
        for start, end, correlation, stream, nbytes in fills:
            yield DeviceActivity(
                "fill",
                "memset",
                int(start),
                int(end),
                int(correlation or 0),
                int(stream or 0),
                bytes=int(nbytes or 0),
                direction="fill",
            )

    def _kernels(self) -> Iterator[DeviceActivity]:
        rows = self._rows(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            ("start", "end", "correlationId", "demangledName"),
            (
                *("streamId", "registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
                *("staticSharedMemory", "dynamicSharedMemory", "graphNodeId"),
            ),
        )
        for start, end, correlation, name, stream, registers, *sizes, static, dynamic, node in rows:
            yield DeviceActivity(
                "kernel",
                self._strings.get(name, "unknown kernel"),
                int(start),
                int(end),
                int(correlation or 0),
                int(stream or 0),
                grid=_triple(sizes[:3]),
                block=_triple(sizes[3:]),
                registers=registers,
                shared_bytes=None if static is None else int(static) + int(dynamic or 0),
                graph_node=node,
            )

    def _copies(self) -> Iterator[DeviceActivity]:
        kinds = {**_MEMORY_KINDS, **self._lowered("ENUM_CUDA_MEM_KIND")}
        directions = self._lowered("ENUM_CUDA_MEMCPY_OPER")
        rows = self._rows(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            ("start", "end", "bytes", "copyKind"),
            ("correlationId", "streamId", "srcKind", "dstKind"),
        )
        for start, end, nbytes, copy, correlation, stream, source, target in rows:
            direction = _direction(directions.get(copy)) if directions else _DIRECTIONS.get(copy, "other")
            host_kind = {"host_to_device": source, "device_to_host": target}.get(direction)
            yield DeviceActivity(
                "copy",
                f"memcpy {direction.replace('_', ' ')}",
                int(start),
                int(end),
                int(correlation or 0),
                int(stream or 0),
                bytes=int(nbytes or 0),
                direction=direction,
                pageable=None if host_kind is None else kinds.get(host_kind, "") == "pageable",
            )

    def _lowered(self, table: str) -> dict[int, str]:
        return {number: label.lower() for number, label in self._enumeration(table).items()}

    def host(self) -> Iterator[HostActivity]:
        rows = self._rows(
            "CUPTI_ACTIVITY_KIND_RUNTIME", ("start", "end", "correlationId", "nameId"), ("globalTid",)
        )
        for start, end, correlation, name, thread in rows:
            text = _VERSION.sub("", self._strings.get(name, ""))
            yield HostActivity(text, int(start), int(end), int(correlation or 0), int(thread or 0))

    def ranges(self) -> Iterator[NamedRange]:
        rows = self._rows("NVTX_EVENTS", ("start", "end"), ("eventType", "text", "textId", "globalTid"))
        for start, end, kind, text, text_id, thread in rows:
            if start is None or end is None or kind not in (None, _PUSH_POP):
                continue  # marks, and ranges that were still open at the end
            said = text if text is not None else self._strings.get(text_id, "")
            yield NamedRange(str(said), int(start), int(end), int(thread or 0))


def _triple(values: Sequence[int | None]) -> tuple[int, int, int] | None:
    if len(values) != 3 or any(value is None for value in values):
        return None
    first, second, third = (int(value or 0) for value in values)
    return first, second, third


def _direction(label: str | None) -> Direction:
    """Nsys's label of a kind of copy: Host-to-Device, Device-to-Host, ..."""
    match re.findall(r"host|device", label or ""):
        case ["host", "device"]:
            return "host_to_device"
        case ["device", "host"]:
            return "device_to_host"
        case ["device", "device"]:
            return "device_to_device"
        case _:
            return "other"
