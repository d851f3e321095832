"""Solves the tasks of a sweep by a pool of workers, and keeps a row of each."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from stitch_mcp.backends.pool import Attempted
from stitch_mcp.backends.pool_status import StatusFile
from stitch_mcp.backends.ray_workers import RayCluster, RayWorker
from stitch_mcp.suite.rows import RowFile, SuiteRow, make_folder
from stitch_mcp.suite.solving import SolvedTask, SolveOrder, SolvePool, SolveSupervisor, SolveWorker
from stitch_mcp.suite.tasks import SuiteTask

_POLL_S = 0.2
_LOST = -9
"""Exit code of a task whose node was lost: it is tried again by the next sweep."""


class Sweep:
    """A sweep at work.

    Programs are timed one at a time on a device, whatever the number of workers: the judge's lock on the
    device sees to it. Captures and builds go on beside it. A task that found no memory beside others is
    tried once more when all others have ended.
    """

    def __init__(
        self,
        rows: RowFile,
        folder: Path,
        arguments: Sequence[str],
        pool: SolvePool,
        *,
        task_limit_s: float,
        compile_every: int = 1,
    ) -> None:
        """A sweep whose runs lie in `folder`.

        Args:
            rows: where each row goes as soon as it is known.
            folder: the workspace of all runs.
            arguments: options of each `stitch-mcp solve`.
            pool: who solves; closed at the end.
            task_limit_s: a run is ended after this many seconds.
            compile_every: torch.compile is timed on one of so many tasks.
        """
        self._rows = rows
        self._folder = folder
        self._arguments = tuple(arguments)
        self._pool = pool
        self._task_limit_s = task_limit_s
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
            EnvironmentMissingError: every node of a cluster was lost.
        """
        make_folder(self._folder)
        last_s = None if begin_until_s is None else time.monotonic() + begin_until_s

        def is_over() -> bool:
            return stop.is_set() or (last_s is not None and time.monotonic() >= last_s)

        def solved(some: Sequence[SuiteTask]) -> list[SuiteTask]:
            """Solves tasks side by side; those that found no memory beside others."""
            running = {} if is_over() else {self._begun(task): task for task in some}
            held: list[SuiteTask] = []
            while running:
                if is_over():
                    self._pool.cancel_waiting()
                if stop.is_set():
                    self._pool.close()
                done, _ = wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    task = running.pop(future)
                    row = None if future.cancelled() else _row(task, future.result())
                    if row is not None:
                        self._rows.add(row)
                        emit(row)
                        held += [task] if row.memory_held else []
            return held

        with self._pool:
            for task in solved(tasks):
                solved([task])

    def _begun(self, task: SuiteTask) -> "Future[Attempted[SolvedTask]]":
        order = SolveOrder(
            name=task.name,
            path=str(task.path.resolve()),
            folder=str(self._folder.resolve()),
            arguments=self._arguments,
            task_limit_s=self._task_limit_s,
            compile_baselines=task.is_each(self._compile_every),
        )
        return self._pool.submit(order)


def local_solvers(jobs: int, gpus: Sequence[str] = (), status_file: StatusFile | None = None) -> SolvePool:
    """Workers of this machine.

    Args:
        jobs: runs side by side.
        gpus: values of CUDA_VISIBLE_DEVICES that the workers take in turn; (): CUDA's own choice.
        status_file: see `WorkerPool`.
    """
    workers = [SolveWorker(gpus[index % len(gpus)] if gpus else None) for index in range(jobs)]
    return SolvePool(workers, status_file=status_file)


def ray_solvers(
    jobs: int, address: str | None, *, on_gpus: bool, status_file: StatusFile | None = None
) -> SolvePool:
    """Supervisors on a Ray cluster, whose nodes share the disk of the sweep and its tasks.

    Args:
        jobs: supervisors, or as many as there is room for.
        address: of a running cluster; None: one of this machine.
        on_gpus: whether each gets a GPU of its own.
        status_file: see `WorkerPool`.

    Raises:
        EnvironmentMissingError: Ray is not installed, no cluster answers, or it has no room.
    """
    cluster = RayCluster(address)
    workers = [
        RayWorker[SolveOrder, SolvedTask](
            cluster.ray, actor, SolvedTask.from_json_bytes, name=f"supervisor {index}"
        )
        for index, actor in enumerate(cluster.actors(SolveSupervisor, (), workers=jobs, gpus=int(on_gpus)))
    ]
    return SolvePool(workers, status_file=status_file, at_end=cluster.close)


def _row(task: SuiteTask, attempted: Attempted[SolvedTask]) -> SuiteRow | None:
    if attempted.answer is not None:
        return attempted.answer.row
    wall_s = round(attempted.wall_s, 1)
    return SuiteRow(task=task.name, exit_code=_LOST, message=attempted.message, wall_s=wall_s)
