"""What runs on a node of a cluster: starts one judge and hands it jobs, never touching CUDA itself."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from stitch_mcp.rl.backends.jobs import JudgeJob, JudgeSettings
from stitch_mcp.rl.backends.local import WORKER, JudgeWorker, judged_with_retries
from stitch_tools.models.base import sha256_hex


class JudgeSupervisor:
    """The body of an actor: plain values in and out, so that no class of ours has to travel."""

    def __init__(
        self, settings: Mapping[str, object], job_limit_s: float, command: Sequence[str] | None
    ) -> None:
        given = JudgeSettings.model_validate(settings)
        # Each supervisor has a workspace of its own: nodes may share a disk without file locks.
        root = Path(given.workspace)
        root.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="judge-", dir=root))
        own = given.model_copy(update={"workspace": str(self._folder)})
        head = json.dumps({"settings": own.model_dump(), "build_slots": None})
        self._worker = JudgeWorker(tuple(command) if command else WORKER, head, job_limit_s)

    def judge(self, key: str, job: Mapping[str, object], reference: bytes) -> dict[str, object]:
        """The result of one job as JSON values; the reference's text comes with it.

        A task.toml that names other files needs them at the same paths on each node.
        """
        given = JudgeJob.model_validate(job)
        named, _, entry = given.reference.partition(":")
        path = Path(named)
        if not path.is_file() or path.read_bytes() != reference:
            path = self._folder / "references" / sha256_hex(reference)[:16] / path.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(reference)
        placed = given.model_copy(update={"reference": f"{path}:{entry}" if entry else str(path)})
        return judged_with_retries(self._worker, key, placed).model_dump(mode="json")
