"""What runs on a node of a cluster: starts one worker process and hands it orders, never touching CUDA."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from stitch_mcp.backends.pool import WorkerFailureError, WorkerHungError, WorkerLostError
from stitch_mcp.backends.worker_process import WorkerProcess
from stitch_planner.runs.run import Workspace
from stitch_tools.models.base import Fact, canonical_json


class RawAnswer(Fact):
    """A worker's answer that is not looked at where it passes."""

    text: str


class WorkerSupervisor:
    """The body of an actor: plain values in and out, so that no class of ours has to travel."""

    def __init__(self, command: Sequence[str], head: Mapping[str, object], limit_s: float) -> None:
        """A supervisor whose worker starts with the first order.

        Args:
            command: what is started.
            head: what the worker is told, with the folder `workspace`.
            limit_s: as of `WorkerProcess`.
        """
        # Each supervisor has a workspace of its own: nodes may share a disk without file locks.
        root = Path(str(head["workspace"]))
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="worker-", dir=root))
        self._store = Workspace(folder).store
        line = canonical_json({**head, "workspace": str(folder)})
        self._worker = WorkerProcess(command, line, _raw, name="", limit_s=limit_s)
        self._doing = ""

    def run(self, order: bytes, files: Mapping[str, bytes]) -> tuple[str, str]:
        """What came of an order, with the files that it names by hash: how it ended, and what was told."""
        try:
            for data in files.values():
                self._store.put(data)
            return "answer", self._worker.run_line(order, self._note).text
        except WorkerHungError as error:
            return "hung", str(error)
        except WorkerLostError as error:
            return "lost", str(error)
        except WorkerFailureError as error:
            return "failure", failure_text(error)
        finally:
            self._doing = ""

    def warm_up(self) -> tuple[str, str]:
        """The same for the start of the worker."""
        return self.run(b"{}", {})

    def doing(self) -> str:
        """What the worker does now, in words."""
        return self._doing

    def stop(self) -> None:
        """End the worker."""
        self._worker.close()

    def _note(self, doing: str) -> None:
        self._doing = doing


def failure_text(error: WorkerFailureError) -> str:
    """A failure, as `RayWorker` reads it."""
    return json.dumps([error.code, error.message, error.hint])


def _raw(answer: bytes) -> RawAnswer:
    return RawAnswer(text=answer.decode("utf-8"))
