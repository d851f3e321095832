"""The records of PyTorch's profiler, written as the tables that `nsys export --type sqlite` writes.

One reader then serves both. Only columns that the reader uses are there.
"""

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from stitch_tools.worker.candidate.activity.profiler_records import (
    ProfilerEvent,
    is_on_host,
    is_operator,
    kind_of,
    metadata_of,
)

_SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
    globalTid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER,
    demangledName INTEGER, registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER,
    blockX INTEGER, blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER,
    graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER,
    bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER,
    bytes INTEGER);
"""
_PUSH_POP = 59  # nsys's number of a range that one thread opened and closed
_COPY_NAME = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?")
# nsys's numbers of directions and kinds of memory.
_DIRECTIONS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
_MEMORY_KINDS = {"Pageable": 0, "Pinned": 1, "Device": 2, "Array": 3, "Managed": 4}
_WAITING = re.compile(r"(Context|Stream|Event) (Sync|Wait)")


def write_tables(events: Iterable[ProfilerEvent], path: str) -> None:
    """Write the records into a new file."""
    with sqlite3.connect(path) as tables:
        tables.executescript(_SCHEMA)
        writer = _Writer(tables)
        for event in events:
            writer.write(event)
        writer.finish()
    tables.close()


class _Writer:
    def __init__(self, tables: sqlite3.Connection) -> None:
        self._tables = tables
        self._ids: dict[str, int] = {}
        self._next: Iterator[int] = count(1)

    def finish(self) -> None:
        rows = [(number, name) for name, number in self._ids.items()]
        self._tables.executemany("INSERT INTO StringIds VALUES (?, ?)", rows)

    def write(self, event: ProfilerEvent) -> None:
        name, start = event.name(), event.start_ns()
        end = start + event.duration_ns()
        if is_on_host(event):
            self._host(event, name, start, end)
        elif not _WAITING.match(name) and not name.startswith("stitch:"):
            self._device(event, name, start, end)

    def _host(self, event: ProfilerEvent, name: str, start: int, end: int) -> None:
        thread = _number(event, "start_thread_id")
        if name.startswith("stitch:") or is_operator(event):
            row = (start, end, _PUSH_POP, name, None, thread)
            self._tables.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", row)
        elif name.startswith("cu"):
            call = (start, end, thread, event.correlation_id(), self._id(name))
            self._tables.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", call)

    def _device(self, event: ProfilerEvent, name: str, start: int, end: int) -> None:
        facts, correlation = _facts(event), event.correlation_id()
        stream = int(facts.get("stream", 0))
        if name.startswith("Memcpy"):
            match = _COPY_NAME.match(name)
            direction, source, target = match.groups() if match else ("", None, None)
            kinds = _MEMORY_KINDS.get(source or ""), _MEMORY_KINDS.get(target or "")
            nbytes = int(facts.get("bytes", 0)) or _number(event, "nbytes")
            copy = (start, end, stream, correlation, nbytes, _DIRECTIONS.get(direction, 0), *kinds)
            self._tables.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?, ?, ?, ?, ?)", copy
            )
        elif name.startswith("Memset"):
            nbytes = int(facts.get("bytes", 0)) or _number(event, "nbytes")
            fill = (start, end, stream, correlation, nbytes)
            self._tables.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (?, ?, ?, ?, ?)", fill)
        elif kind_of(event) in (None, "kernel", "concurrent_kernel"):
            grid = (*facts.get("grid", ()), None, None, None)[:3]
            block = (*facts.get("block", ()), None, None, None)[:3]
            resources = facts.get("registers per thread"), *grid, *block, facts.get("shared memory"), 0
            node = int(facts.get("graph node id", 0)) or None
            kernel = (start, end, stream, correlation, self._id(name), *resources, node)
            marks = ", ".join("?" * len(kernel))
            self._tables.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", kernel)

    def _id(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = next(self._next)
        return self._ids[name]


def _facts(event: ProfilerEvent) -> dict[str, Any]:
    """What newer versions of torch say besides, as JSON without its braces."""
    text = metadata_of(event).strip()
    if not text:
        return {}
    try:
        return json.loads(text if text.startswith("{") else f"{{{text}}}")
    except ValueError:
        return {}


def _number(event: ProfilerEvent, method: str) -> int:
    function = getattr(event, method, None)
    return int(function()) if function is not None else 0
