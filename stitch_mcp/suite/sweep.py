"""Solves the tasks of a sweep in processes of their own, several side by side."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from stitch_mcp.suite.gpus import GpuShares
from stitch_mcp.suite.rows import RowFile, SuiteRow, contract_words, make_folder, parse_answer, row_of
from stitch_mcp.suite.tasks import SuiteTask
from stitch_planner.runs.run import Workspace, read_state
from stitch_tools.errors import StitchError
from stitch_tools.models.task import Task

TIMED_OUT = 124
_POLL_S = 0.2
_GRACE_S = 20.0
"""A run that is told to end has this long for its step's clean-up."""


class Sweep:
    """A sweep at work.

    Programs are timed one at a time on a device, whatever `jobs` says: the judge's lock on the device sees to
    it. Captures and builds go on beside it. A task that found no memory beside others is tried once more when
    all others have ended.
    """

    def __init__(
        self,
        rows: RowFile,
        folder: Path,
        arguments: Sequence[str],
        *,
        jobs: int,
        task_limit_s: float,
        gpus: Sequence[str] = (),
        compile_every: int = 1,
    ) -> None:
        """A sweep whose runs lie in `folder`.

        Args:
            rows: where each row goes as soon as it is known.
            folder: the workspace of all runs.
            arguments: options of each `stitch-mcp solve`.
            jobs: runs side by side.
            task_limit_s: a run is ended after this many seconds.
            gpus: values of CUDA_VISIBLE_DEVICES; each run gets the one with the fewest others. None: CUDA's
                own choice.
            compile_every: torch.compile is timed on one of so many tasks.
        """
        self._rows = rows
        self._folder = folder
        self._arguments = tuple(arguments)
        self._jobs = jobs
        self._task_limit_s = task_limit_s
        self._gpus = GpuShares(gpus)
        self._compile_every = compile_every

    def run(
        self,
        tasks: Sequence[SuiteTask],
        *,
        begin_until_s: float | None = None,
        stop: threading.Event,
        emit: Callable[[SuiteRow], None],
    ) -> None:
        """Solves every task; `emit` receives each row as it is known.

        Args:
            tasks: what is left to do.
            begin_until_s: no task is begun later than this many seconds from now; None is for ever.
            stop: when set, no task is begun, and those at work end after their step.
            emit: called in this thread.

        Raises:
            StoreError: a row cannot be written.
        """
        make_folder(self._folder)
        last_s = None if begin_until_s is None else time.monotonic() + begin_until_s
        waiting, held = list(tasks), list[str]()

        def is_over() -> bool:
            return stop.is_set() or (last_s is not None and time.monotonic() >= last_s)

        def keep(row: SuiteRow) -> None:
            self._rows.add(row)
            emit(row)

        running: set[Future[SuiteRow | None]] = set()
        with ThreadPoolExecutor(self._jobs) as pool:
            while waiting or running:
                if is_over():
                    waiting.clear()
                while waiting and len(running) < self._jobs:
                    running.add(pool.submit(self._solve, waiting.pop(0), stop))
                done, running = wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                for row in (future.result() for future in done):
                    if row is not None:
                        keep(row)
                        held += [row.task] if row.memory_held else []
        for task in [task for task in tasks if task.name in held]:
            row = None if is_over() else self._solve(task, stop)
            if row is not None:
                keep(row)

    def _solve(self, task: SuiteTask, stop: threading.Event) -> SuiteRow | None:
        """The task's row; None where it was interrupted, so that the next sweep tries it again."""
        gpu = self._gpus.take()
        try:
            return self._solve_on(gpu, task, stop)
        finally:
            self._gpus.give_back(gpu)

    def _solve_on(self, gpu: str | None, task: SuiteTask, stop: threading.Event) -> SuiteRow | None:
        begun_s = time.monotonic()
        command = [sys.executable, "-m", "stitch_mcp", "solve", str(task.path.resolve()), "--json"]
        command += ["--workspace", str(self._folder), *self._arguments]
        env = dict(os.environ)
        if gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = gpu
        if not task.is_each(self._compile_every):
            env["STITCH_COMPILE_BASELINES"] = "false"
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=env,
            # Ctrl-C reaches the sweep alone, which then tells its runs.
            start_new_session=True,
        ) as process:
            text, timed_out = self._answer(process, stop, begun_s)
        if stop.is_set() and process.returncode not in (0, 3, 4, 9):
            return None
        wall_s = time.monotonic() - begun_s
        if timed_out:
            message = f"ended after {self._task_limit_s:g} s"
            return SuiteRow(task=task.name, exit_code=TIMED_OUT, message=message, wall_s=round(wall_s, 1))
        answer = parse_answer(text)
        contract = self._contract(answer.get("run_id"))
        return row_of(task.name, answer, process.returncode, wall_s, contract=contract, gpu=gpu or "")

    def _contract(self, run_id: object) -> str:
        """The contract of a run in words; "" where there is no such run."""
        if not isinstance(run_id, str):
            return ""
        workspace = Workspace(self._folder)
        try:
            begun = read_state(workspace.run_folder(run_id)).started
            return contract_words(workspace.store.get_fact(begun.task, Task).contract) if begun else ""
        except StitchError:
            return ""

    def _answer(
        self, process: "subprocess.Popen[str]", stop: threading.Event, begun_s: float
    ) -> tuple[str, bool]:
        """What the process printed, and whether its time was up."""
        told_s: float | None = None
        while True:
            try:
                return process.communicate(timeout=_POLL_S)[0], told_s is not None and not stop.is_set()
            except subprocess.TimeoutExpired:
                now_s = time.monotonic()
            if told_s is None and (stop.is_set() or now_s - begun_s > self._task_limit_s):
                told_s = now_s
                _signal(process, signal.SIGTERM)
            elif told_s is not None and now_s - told_s > _GRACE_S:
                _signal(process, signal.SIGKILL)


def _signal(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
