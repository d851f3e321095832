"""What the workers of a pool do, and the file in which other processes of the workspace read it."""

import contextlib
import os
import threading
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from stitch_mcp.jobs.tree import process_start
from stitch_tools.models.base import Fact
from stitch_tools.storage.store import write_atomically

WAITS_TO_BUILD, WAITS_FOR_DEVICE = "waits to build", "waits for the device"
"""What a worker does that waits for its turn: the limit of its order stands still meanwhile."""


class WorkerStatus(Fact):
    """One worker."""

    name: str
    """Its device or node."""
    state: Literal["idle", "busy", "quarantined"]
    """`quarantined`: it lost several orders in a row, and gets no more."""
    doing: str = ""
    """In words; "" for an idle one."""
    since_s: float = 0.0
    """Seconds for which it has been doing that."""
    done: int = 0
    failed: int = 0
    """Orders that were lost or hung in the end."""


class PoolStatus(Fact):
    """All workers of a pool."""

    workers: tuple[WorkerStatus, ...]
    waiting: int = 0
    """Orders that no worker has begun."""

    @property
    def busy(self) -> int:
        """Workers that are at work."""
        return sum(row.state == "busy" for row in self.workers)

    @property
    def builds_waiting(self) -> int:
        """Workers that wait for a place to build."""
        return sum(row.doing == WAITS_TO_BUILD for row in self.workers)


class LivePool(Fact):
    """A pool as its status file describes it."""

    purpose: str
    """The command that opened it."""
    pid: int
    started: str
    """When that process began, so that another one of its number is not taken for it."""
    status: PoolStatus


class StatusFile:
    """The status of one pool of this process, in the workspace's folder."""

    def __init__(self, workspace: Path, purpose: str) -> None:
        """Nothing is written yet."""
        self._purpose = purpose
        self._path = status_folder(workspace) / f"{os.getpid()}-{id(self):x}.json"
        self._lock = threading.Lock()

    def write(self, status: PoolStatus) -> None:
        """Replace what was written before.

        Raises:
            StoreError: the folder cannot be written.
        """
        pid = os.getpid()
        pool = LivePool(purpose=self._purpose, pid=pid, started=process_start(pid), status=status)
        with self._lock:
            write_atomically(self._path, pool.canonical_json())

    def remove(self) -> None:
        """Remove the file: the pool has ended."""
        with self._lock:
            self._path.unlink(missing_ok=True)


def status_folder(workspace: Path) -> Path:
    """Where the pools of a workspace say what they do."""
    return workspace / ".stitch" / "workers"


def live_pools(workspace: Path) -> list[LivePool]:
    """The pools of this workspace whose processes are alive; files of others are removed."""
    found: list[LivePool] = []
    for path in sorted(status_folder(workspace).glob("*.json")):
        with contextlib.suppress(OSError, ValidationError):
            pool = LivePool.from_json_bytes(path.read_bytes())
            if process_start(pool.pid) == pool.started:
                found.append(pool)
            else:
                path.unlink()
    return found
