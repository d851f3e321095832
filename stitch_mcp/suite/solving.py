"""One task of a sweep, solved in a process of its own: the order, and the worker that does it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from stitch_mcp.backends.pool import Note, WorkerFailureError, WorkerPool
from stitch_mcp.suite.rows import SuiteRow, contract_words, parse_answer, row_of
from stitch_planner.runs.run import Workspace, read_state
from stitch_tools.errors import StitchError
from stitch_tools.models.base import Fact
from stitch_tools.models.task import Task

TIMED_OUT = 124
_POLL_S = 0.2
_GRACE_S = 20.0
"""A run that is told to end has this long for its step's clean-up."""
_ENDED_BY_ITSELF = (0, 3, 4, 9)


class SolveOrder(Fact):
    """A task to solve."""

    name: str
    path: str
    """Absolute, of the reference or task file."""
    folder: str
    """The workspace of its run."""
    arguments: tuple[str, ...]
    """Options of `stitch-mcp solve`."""
    task_limit_s: float
    """The run is ended after this many seconds."""
    compile_baselines: bool = True
    """False: torch.compile is not timed, whatever the settings say."""


class SolvedTask(Fact):
    """What came of it."""

    row: SuiteRow | None
    """None where it was interrupted, so that the next sweep tries it again."""


SolvePool = WorkerPool[SolveOrder, SolvedTask]


class SolveWorker:
    """Solves one task after the other, each by a `stitch-mcp solve` of its own; see `PoolWorker`."""

    def __init__(self, gpu: str | None = None) -> None:
        """`gpu`: value of CUDA_VISIBLE_DEVICES; None leaves it as it is."""
        self.name = gpu or "this machine"
        self._gpu = gpu
        self._stop = threading.Event()

    def warm_up(self) -> None:
        """Nothing: each task starts its own process."""

    def run(self, order: SolveOrder, note: Note) -> SolvedTask:
        """The task's row.

        Raises:
            WorkerFailureError: the reference is not on this machine.
        """
        if not Path(order.path).exists():
            raise WorkerFailureError(
                "usage", f"there is no {order.path} here", "a sweep needs a disk that all nodes share"
            )
        note(order.name)
        begun_s = time.monotonic()
        with subprocess.Popen(
            _command(order),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=self._environment(order),
            # Ctrl-C reaches the sweep alone, which then tells its runs.
            start_new_session=True,
        ) as process:
            text, timed_out = self._answer(process, begun_s + order.task_limit_s)
        if self._stop.is_set() and process.returncode not in _ENDED_BY_ITSELF:
            return SolvedTask(row=None)
        wall_s = time.monotonic() - begun_s
        if timed_out:
            message = f"ended after {order.task_limit_s:g} s"
            row = SuiteRow(task=order.name, exit_code=TIMED_OUT, message=message, wall_s=round(wall_s, 1))
            return SolvedTask(row=row)
        answer = parse_answer(text)
        contract = _contract(Workspace(Path(order.folder)), answer.get("run_id"))
        gpu = self._gpu or ""
        return SolvedTask(
            row=row_of(order.name, answer, process.returncode, wall_s, contract=contract, gpu=gpu)
        )

    def close(self) -> None:
        """Tell the run to end after its step; it is killed when it takes too long."""
        self._stop.set()

    def _environment(self, order: SolveOrder) -> dict[str, str]:
        env = dict(os.environ)
        if self._gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = self._gpu
        if not order.compile_baselines:
            env["STITCH_COMPILE_BASELINES"] = "false"
        return env

    def _answer(self, process: "subprocess.Popen[str]", deadline_s: float) -> tuple[str, bool]:
        """What the process printed, and whether its time was up."""
        told_s: float | None = None
        while True:
            try:
                text = process.communicate(timeout=_POLL_S)[0]
                return text, told_s is not None and not self._stop.is_set()
            except subprocess.TimeoutExpired:
                now_s = time.monotonic()
            if told_s is None and (self._stop.is_set() or now_s > deadline_s):
                told_s = now_s
                _signal(process, signal.SIGTERM)
            elif told_s is not None and now_s - told_s > _GRACE_S:
                _signal(process, signal.SIGKILL)


class SolveSupervisor:
    """The body of an actor that solves tasks, as `RayWorker` asks it: plain values in and out."""

    def __init__(self) -> None:
        """Pins its runs to the GPU that Ray gave it, by the name that a sweep of one machine gives it."""
        from stitch_tools.machine.devices import find_gpus

        own = [gpu.uuid for gpu in find_gpus().gpus] if os.environ.get("CUDA_VISIBLE_DEVICES") else []
        self._worker = SolveWorker(own[0] if own else None)
        self._doing = ""

    def run(self, order: bytes, files: dict[str, bytes]) -> tuple[str, str]:
        """What came of an order: how it ended, and what was told."""
        from stitch_mcp.backends.supervisor import failure_text

        del files  # a sweep's tasks lie on a disk that all nodes share
        try:
            result = self._worker.run(SolveOrder.from_json_bytes(order), self._note)
        except WorkerFailureError as error:
            return "failure", failure_text(error)
        finally:
            self._doing = ""
        return "answer", result.canonical_json().decode("utf-8")

    def warm_up(self) -> tuple[str, str]:
        """Nothing is to be started."""
        return "answer", "{}"

    def doing(self) -> str:
        """The task that is solved now."""
        return self._doing

    def stop(self) -> None:
        """Tell the run to end after its step."""
        self._worker.close()

    def _note(self, doing: str) -> None:
        self._doing = doing


def _command(order: SolveOrder) -> list[str]:
    command = [sys.executable, "-m", "stitch_mcp", "solve", order.path, "--json"]
    return [*command, "--workspace", order.folder, *order.arguments]


def _contract(workspace: Workspace, run_id: object) -> str:
    """The contract of a run in words; "" where there is no such run."""
    if not isinstance(run_id, str):
        return ""
    try:
        begun = read_state(workspace.run_folder(run_id)).started
        return contract_words(workspace.store.get_fact(begun.task, Task).contract) if begun else ""
    except StitchError:
        return ""


def _signal(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
