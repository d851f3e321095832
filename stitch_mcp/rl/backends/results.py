"""Results by content hash, in one folder that all processes of a machine or cluster share."""

import contextlib
from pathlib import Path

from pydantic import ValidationError

from stitch_mcp.rl.backends.jobs import JobResult
from stitch_mcp.rl.reward.scoring import examine
from stitch_tools.storage.store import write_atomically


class ResultStore:
    """One JSON file a judged job. A file is whole or not there, so that readers and writers need no lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str) -> JobResult | None:
        """The result of the job with this key; None where it was never judged, or its file is damaged."""
        with contextlib.suppress(OSError, ValidationError):
            return JobResult.from_json_bytes(self._path(key).read_bytes())
        return None

    def keep(self, result: JobResult) -> None:
        """Keeps a result that says something about the program; one that was lost has to be tried again.

        Raises:
            StoreError: the folder cannot be written.
        """
        # Whoever found no device, or a busy machine, learns nothing about the program.
        is_valid = result.evidence is None or examine(result.evidence).valid
        if result.outcome != "lost" and is_valid:
            write_atomically(self._path(result.key), result.canonical_json())

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
