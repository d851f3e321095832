"""The user's memory: lessons of finished runs as JSON lines, in a file of bounded size."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from stitch_planner.runs.lessons import Lesson
from stitch_tools.errors import StoreError
from stitch_tools.storage.locks import FileLock
from stitch_tools.storage.small_file import read_small
from stitch_tools.storage.store import storing, write_atomically

_MOST_LESSONS, _LARGEST_BYTES = 500, 1 << 20
_WAIT_S = 5.0


@dataclass(frozen=True)
class MemoryFile:
    """A file of lessons, oldest first. Several processes may use it."""

    path: Path

    def lessons(self) -> tuple[Lesson, ...]:
        """All lessons; a line that is none, as of another version, is passed over.

        Raises:
            StoreError: the file cannot be read.
        """
        try:
            text = read_small(self.path, _LARGEST_BYTES).decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be read: {error.strerror or error}",
                hint="look at it, or remove it with `stitch-mcp memory clear`",
            ) from error
        rows: list[Lesson] = []
        for line in text.splitlines():
            try:
                rows.append(Lesson.from_json_bytes(line.encode("utf-8")))
            except ValidationError:
                continue
        return tuple(rows)

    def remember(self, run_id: str, lessons: Sequence[Lesson]) -> None:
        """Add a run's lessons in place of those that are there of it; the oldest ones go.

        Raises:
            StoreError: the file cannot be read or written.
            LockedError: another process holds it.
        """
        lock = FileLock(self.path.with_suffix(".lock"), purpose="add lessons")
        lock.acquire(wait_s=_WAIT_S)
        try:
            kept = [row for row in self.lessons() if row.run_id != run_id]
            lines = [row.canonical_json() + b"\n" for row in (*kept, *lessons)]
            write_atomically(self.path, b"".join(lines[-_MOST_LESSONS:]), mode=0o600)
        finally:
            lock.release()

    def clear(self) -> None:
        """Forget everything.

        Raises:
            StoreError: the file cannot be removed.
        """
        with storing(self.path):
            self.path.unlink(missing_ok=True)


def user_memory_file() -> Path:
    """Where the user's lessons lie, whether or not there are any."""
    import platformdirs

    return platformdirs.user_data_path("stitch-mcp") / "memory.jsonl"
