"""Writes recordings in the tables that nsys exports, event by event, for tests of what reads them."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
    eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
    returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
    deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL,
    registersPerThread INTEGER NOT NULL,
    gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL,
    blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
    dynamicSharedMemory INTEGER NOT NULL, graphNodeId INTEGER);
"""
_MEMCPY = """
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
    deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
    correlationId INTEGER, bytes INTEGER NOT NULL,
    copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
"""
_MEMCPY_OPERATIONS = ((1, "Host-to-Device"), (2, "Device-to-Host"), (8, "Device-to-Device"))
_MEMORY_KINDS = ((0, "Pageable"), (1, "Pinned"), (2, "Device"))
_PUSH_POP, _MARK = 59, 34
_THREAD = 281474976710657


class RecordingBuilder:
    """One recording; times are microseconds from its beginning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tables = sqlite3.connect(path)
        self._tables.executescript(_SCHEMA)
        self._ids: dict[str, int] = {}
        self._correlation = 0
        self._has_copies = False
        self._fill("ENUM_CUDA_MEMCPY_OPER", _MEMCPY_OPERATIONS)
        self._fill("ENUM_CUDA_MEM_KIND", _MEMORY_KINDS)

    def _fill(self, table: str, rows: Sequence[tuple[int, str]]) -> None:
        self._tables.executemany(f"INSERT INTO {table} VALUES (?, '', ?)", rows)

    def range(self, text: str, start_us: float, end_us: float, *, registered: bool = False) -> None:
        """A range of the main thread; `registered`: its text lies among the strings, as some do."""
        said = (None, self._id(text)) if registered else (text, None)
        row = (_ns(start_us), _ns(end_us), _PUSH_POP, said[0], _THREAD, said[1])
        columns = "start, end, eventType, text, globalTid, textId"
        self._tables.execute(f"INSERT INTO NVTX_EVENTS ({columns}) VALUES (?, ?, ?, ?, ?, ?)", row)

    def mark(self, text: str, at_us: float) -> None:
        """A mark without an end."""
        row = (_ns(at_us), _MARK, text, _THREAD)
        self._tables.execute(
            "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid) VALUES (?, ?, ?, ?)", row
        )

    def call(self, name: str, start_us: float, end_us: float, correlation: int = 0) -> None:
        """A call into runtime or driver."""
        row = (_ns(start_us), _ns(end_us), 0, _THREAD, correlation, self._id(name), 0, None)
        self._tables.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def kernel(
        self,
        name: str,
        launched_us: float,
        start_us: float,
        duration_us: float,
        *,
        launch_us: float = 3.0,
        grid: tuple[int, int, int] = (64, 1, 1),
        node: int | None = None,
    ) -> None:
        """A kernel with the runtime's launch and the driver's inside of it."""
        self._correlation += 1
        self.call("cudaLaunchKernel_v7000", launched_us, launched_us + launch_us, self._correlation)
        self.call(
            "cuLaunchKernel", launched_us + 0.5, launched_us + launch_us - 0.5, self._correlation + 10**6
        )
        times = _ns(start_us), _ns(start_us + duration_us)
        named = self._id(name)
        row = (*times, 0, 1, 7, self._correlation, 1, named, named, 32, *grid, 256, 1, 1, 0, 1024, node)
        marks = ", ".join("?" * len(row))
        self._tables.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", row)

    def copy(
        self, direction: int, start_us: float, duration_us: float, nbytes: int, source: int, target: int
    ) -> None:
        """A copy; direction and kinds of memory by nsys's numbers."""
        if not self._has_copies:
            self._tables.executescript(_MEMCPY)
            self._has_copies = True
        self._correlation += 1
        self.call("cudaMemcpyAsync_v3020", start_us - 4, start_us - 1, self._correlation)
        times = _ns(start_us), _ns(start_us + duration_us)
        row = (*times, 0, 1, 7, self._correlation, nbytes, direction, source, target)
        marks = ", ".join("?" * len(row))
        self._tables.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({marks})", row)

    def iteration(self, start_us: float, end_us: float, call_end_us: float | None = None) -> None:
        """The ranges of one iteration, with the runner's own wait after the call."""
        ends = call_end_us if call_end_us is not None else end_us - 1.0
        self.range("stitch:iteration", start_us, end_us)
        self.range("stitch:call", start_us, ends)
        self.call("cudaDeviceSynchronize_v3020", ends + 0.1, end_us - 0.1)

    def finish(self) -> Path:
        """Write it; returns its path."""
        self._tables.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in self._ids.items()]
        )
        self._tables.commit()
        self._tables.close()
        return self.path

    def _id(self, text: str) -> int:
        return self._ids.setdefault(text, len(self._ids) + 1)


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000) + 1_000_000


def host_bound_recording(path: Path, *, kernels: int = 20, iterations: int = 3) -> Path:
    """Kernels of 4 us, one launched every 10 us: the device waits for the host."""
    builder = RecordingBuilder(path)
    builder.range("stitch:calibration", 0, 400)
    for index in range(10):
        builder.kernel("void at::native::tiny()", 10 * index, 10 * index + 5, 1.2)
    length = 10.0 * kernels + 20.0
    for place in range(iterations):
        begin = 1000 + place * (length + 50)
        builder.iteration(begin, begin + length, begin + 10.0 * kernels)
        for index in range(kernels):
            name = (
                "sgemm_128x64"
                if index % 2
                else "void at::native::vectorized_elementwise_kernel<4, ReluFunctor>"
            )
            builder.kernel(name, begin + 10 * index, begin + 10 * index + 5, 4.0)
    named = 1000 + iterations * (length + 50)
    builder.range("stitch:named", named, named + 2 * length)
    builder.range("stitch:module:|Model", named + 1, named + 2 * length - 1)
    for index in range(kernels):
        at = named + 2 + 20 * index
        builder.range(f"stitch:module:layer{index % 2}|Linear", at, at + 15)
        builder.range("aten::linear, op_id = 3", at + 1, at + 14, registered=True)
        builder.range("aten::addmm, op_id = 4", at + 2, at + 13)
        name = (
            "sgemm_128x64" if index % 2 else "void at::native::vectorized_elementwise_kernel<4, ReluFunctor>"
        )
        builder.kernel(name, at + 3, at + 9, 4.0)
    return builder.finish()
