"""Makes a fixture of a recording of nsys: only what `read_trace` reads, without a trace of the machine.

    python -m tests.tools.profile.strip_recording REPORT.sqlite FIXTURE.sqlite.gz

Kept are the columns below, the strings that they name, the first iterations and the named one. Left out are
environment, processes, threads, file names and host. Times begin at 0, threads are numbered.
"""

import gzip
import re
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

COLUMNS = {
    "ENUM_CUDA_MEMCPY_OPER": ("id", "label"),
    "ENUM_CUDA_MEM_KIND": ("id", "label"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "globalTid"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *("start", "end", "streamId", "correlationId", "demangledName", "registersPerThread"),
        *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
        *("staticSharedMemory", "dynamicSharedMemory", "graphNodeId"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        *("start", "end", "streamId", "correlationId", "bytes", "copyKind", "srcKind", "dstKind"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("start", "end", "streamId", "correlationId", "bytes"),
}
"""The tables of a fixture with their columns; StringIds besides."""
_TEXTS = ("textId", "nameId", "demangledName")
_ITERATION = "stitch:iteration"
_KEPT_ITERATIONS = 3


def strip(source: Path, target: Path) -> None:
    """Write the fixture of a recording."""
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as whole,
        tempfile.TemporaryDirectory() as folder,
    ):
        file = Path(folder) / "stripped.sqlite"
        with closing(sqlite3.connect(file)) as stripped:
            _copy(whole, stripped)
            stripped.commit()
            stripped.execute("VACUUM")
        # A fixed time: the same recording gives the same bytes.
        target.write_bytes(gzip.compress(file.read_bytes(), compresslevel=9, mtime=0))


def _copy(whole: sqlite3.Connection, stripped: sqlite3.Connection) -> None:
    present = {str(row[0]) for row in whole.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    origin, dropped = _span(whole)
    threads: dict[int, int] = {}
    used: set[int] = set()
    for table, columns in COLUMNS.items():
        if table not in present:
            continue
        stripped.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
        for row in whole.execute(f"SELECT {', '.join(columns)} FROM {table}"):
            values = dict(zip(columns, row, strict=True))
            if "start" in values:
                if values["end"] is None or dropped[0] <= values["start"] < dropped[1]:
                    continue
                values["start"] -= origin
                values["end"] -= origin
            if "globalTid" in values:
                values["globalTid"] = threads.setdefault(values["globalTid"], len(threads) + 1)
            used.update(values[name] for name in _TEXTS if values.get(name) is not None)
            marks = ", ".join("?" * len(columns))
            stripped.execute(f"INSERT INTO {table} VALUES ({marks})", tuple(values.values()))
    stripped.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    names = dict(whole.execute("SELECT id, value FROM StringIds"))
    stripped.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, names[i]) for i in sorted(used)])


def _span(whole: sqlite3.Connection) -> tuple[int, tuple[int, int]]:
    """Where time begins, and the span of the iterations that are left out."""
    first = whole.execute("SELECT min(start) FROM NVTX_EVENTS WHERE end IS NOT NULL").fetchone()[0]
    iterations: Sequence[tuple[int, int]] = whole.execute(
        "SELECT start, end FROM NVTX_EVENTS WHERE text = ? ORDER BY start", (_ITERATION,)
    ).fetchall()
    if len(iterations) <= _KEPT_ITERATIONS:
        return first, (0, 0)
    return first, (iterations[_KEPT_ITERATIONS][0], iterations[-1][1])


def traces_of_a_machine(fixture: Path) -> list[str]:
    """Strings of a fixture that look like a path, a host's name or a variable of the environment."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fixture.sqlite"
        file.write_bytes(gzip.decompress(fixture.read_bytes()))
        with closing(sqlite3.connect(file)) as tables:
            texts = [str(row[0]) for row in tables.execute("SELECT value FROM StringIds")]
            texts += [
                str(row[0]) for row in tables.execute("SELECT text FROM NVTX_EVENTS WHERE text NOT NULL")
            ]
        # Also what lies in pages that no table uses any more.
        raw = file.read_bytes().decode("latin-1")
    pattern = re.compile(
        r"/(?:tmp|home|root|usr|opt|work|proc|etc|var)\b|\b[A-Z][A-Z0-9_]{2,}=|\.(?:so|py|log)\b"
    )
    return [text for text in (*texts, *re.findall(r"[ -~]{6,}", raw)) if pattern.search(text)]


if __name__ == "__main__":
    strip(Path(sys.argv[1]), Path(sys.argv[2]))
