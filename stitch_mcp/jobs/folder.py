"""A job's folder: `request.json`, `state.json`, `log.txt`, and the lock that says whether it is alive."""

import contextlib
import os
import re
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import ValidationError

from stitch_mcp.jobs.state import JobRequest, JobState
from stitch_tools.errors import LockedError, StoreError, UsageError
from stitch_tools.models.base import Fact
from stitch_tools.storage.locks import FileLock
from stitch_tools.storage.store import write_atomically

FactT = TypeVar("FactT", bound=Fact)
_ID = re.compile(r"[0-9a-f]{16}")


class JobFolder:
    """One job of a workspace, whether or not it exists yet."""

    def __init__(self, jobs: Path, job_id: str) -> None:
        """Nothing is touched.

        Raises:
            UsageError: `job_id` is none.
        """
        if not _ID.fullmatch(job_id):
            raise UsageError(f"{job_id[:40]!r} is no job id", hint="job ids are 16 hexadecimal digits")
        self.job_id = job_id
        self.path = jobs / job_id

    @property
    def log(self) -> Path:
        """What the job's process printed."""
        return self.path / "log.txt"

    def open_log(self) -> BinaryIO:
        """The log, opened to be added to; a link there, which may have come with a repository, is replaced.

        Raises:
            OSError: it cannot be written.
        """
        if self.log.is_symlink():
            self.log.unlink()
        # O_NOFOLLOW closes the gap between the look above and the opening.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.fdopen(os.open(self.log, flags, 0o644), "ab")

    def lock(self) -> FileLock:
        """The lock that the job's process holds as long as it lives; not taken."""
        return FileLock(self.path / "lock", purpose="runs this job")

    @property
    def alive(self) -> bool:
        """Whether a process works on it."""
        # Taking a lock creates its file: a look must leave no trace.
        if not (self.path / "lock").exists():
            return False
        lock = self.lock()
        try:
            lock.acquire()
        except LockedError:
            return True
        lock.release()
        return False

    def write_request(self, request: JobRequest) -> None:
        """Keep the request; a second call with the same one changes nothing, but repairs a damaged file."""
        data, path = request.canonical_json(), self.path / "request.json"
        with contextlib.suppress(OSError):
            if path.read_bytes() == data:
                return
        write_atomically(path, data)

    def write_state(self, state: JobState) -> None:
        """Replace the state. Only the lock's holder may."""
        write_atomically(self.path / "state.json", state.canonical_json())

    def request(self) -> JobRequest:
        """The request.

        Raises:
            UsageError: there is no such job.
            StoreError: its file is damaged.
        """
        return self._fact("request", JobRequest)

    def state(self) -> JobState:
        """The state as far as its process came; `interrupted` where that died before the end.

        Raises:
            UsageError: there is no such job.
            StoreError: its file is damaged.
        """
        state = self.state_as_written()
        if state.status != "working" or self.alive:
            return state
        # It may have ended between the two looks.
        state = self.state_as_written()
        if state.status != "working":
            return state
        message = f"its process ended before it was done ({state.progress or 'nothing was done yet'})"
        return state.model_copy(update={"status": "interrupted", "message": message})

    def state_as_written(self) -> JobState:
        """The state as the last holder of the lock left it, alive or not.

        Raises:
            UsageError: there is no such job.
            StoreError: its file is damaged.
        """
        return self._fact("state", JobState)

    def _fact(self, name: str, kind: type[FactT]) -> FactT:
        try:
            return kind.from_json_bytes(self._read(f"{name}.json"))
        except ValidationError as error:
            raise StoreError(
                f"the {name} of job {self.job_id} is damaged", hint="make the call again"
            ) from error

    def _read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError as error:
            raise UsageError(
                f"there is no job {self.job_id} in this workspace",
                hint="job ids come from the slow tools' results",
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot read {self.path}: {error.strerror}", hint="check the workspace"
            ) from error


def job_ids(jobs: Path) -> list[str]:
    """Ids of all jobs below the folder, the newest first."""
    dated: list[tuple[float, str]] = []
    with contextlib.suppress(OSError):
        for path in jobs.iterdir():
            with contextlib.suppress(OSError):
                if _ID.fullmatch(path.name):
                    dated.append(((path / "state.json").stat().st_mtime, path.name))
    # By the state's time of change, which also orders the jobs of other servers.
    return [name for _, name in sorted(dated, reverse=True)]
