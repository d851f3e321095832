"""Judges submissions on a Ray cluster: one supervisor actor a GPU (or CPU), none of which touches CUDA.

A supervisor starts one worker process, as `LocalBackend` does, and gives it one job at a time. Ray is asked
for nothing else: which job goes where, what is tried again and what is given up is decided here. Needs the
extra `ray`.
"""

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stitch_mcp.rl.backends.jobs import JobResult, JudgeJob, JudgeSettings, Seen, distinct
from stitch_mcp.rl.backends.results import ResultStore
from stitch_mcp.rl.backends.supervisor import JudgeSupervisor
from stitch_tools.errors import EnvironmentMissingError

_TRIES = 3
"""How often a job is given to a supervisor: nodes may die one after another."""
_STRIKES = 3
"""Different jobs in a row that a supervisor loses before it gets no more: its device or node is wedged."""
_GRACE_S = 60.0
"""Beyond a supervisor's own limits, before its actor is ended."""


class RayBackend:
    """Judges on the nodes of a cluster. A context manager; one thread at a time may call `judge`."""

    def __init__(
        self,
        settings: JudgeSettings,
        results: Path,
        *,
        address: str | None = None,
        workers: int = 1,
        job_limit_s: float = 600.0,
        cpus_per_worker: float = 1.0,
        command: Sequence[str] | None = None,
    ) -> None:
        """Connects to a cluster, or starts one of this machine, and places the supervisors.

        Args:
            settings: how submissions are judged; the workspace is a folder on each node.
            results: folder of the results by content hash, where this process can write.
            address: of a running cluster; None: one of this machine.
            workers: supervisors; each takes a GPU where the target is one.
            job_limit_s: seconds after which a job is cancelled.
            cpus_per_worker: that each supervisor reserves.
            command: what a supervisor starts; None: the judge.

        Raises:
            EnvironmentMissingError: Ray is not installed, or the cluster has no room for a single supervisor.
        """
        try:
            # By name: Ray is not installed where types are checked, and has none of its own for actors.
            self._ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise EnvironmentMissingError(
                "Ray is not installed", hint='install the extra: pip install "stitch-mcp[ray]"'
            ) from error
        self.settings = settings
        self.results = ResultStore(results)
        self._job_limit_s = job_limit_s
        self._own_cluster = not self._ray.is_initialized()
        if self._own_cluster:
            self._ray.init(address=address, log_to_driver=False, include_dashboard=False)
        gpus = 1 if settings.target.startswith("cuda") else 0
        number = min(workers, self._room(cpus_per_worker, gpus))
        remote = self._ray.remote(num_cpus=cpus_per_worker, num_gpus=gpus, max_restarts=-1)(JudgeSupervisor)
        given = (settings.model_dump(), job_limit_s, list(command) if command else None)
        self._actors: list[Any] = [remote.remote(*given) for _ in range(number)]
        self._lost: dict[int, set[str]] = {index: set() for index in range(number)}

    def __enter__(self) -> "RayBackend":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def judge(self, jobs: Sequence[JudgeJob], seen: Seen | None = None) -> Sequence[JobResult]:
        """The results of the jobs, in their order; see `Backend`.

        Raises:
            EnvironmentMissingError: every supervisor is wedged.
        """
        wanted = distinct(jobs, self.settings)
        known = {key: result for key in wanted if (result := self.results.find(key)) is not None}
        waiting = [(key, job, 1) for key, job in wanted.items() if key not in known]
        running: dict[Any, tuple[int, str, JudgeJob, int, float]] = {}
        while waiting or running:
            self._give(waiting, running)
            done, _ = self._ray.wait(list(running), num_returns=1, timeout=1.0)
            for reference in [*done, *self._overdue(running, done)]:
                actor, key, job, tries, _ = running.pop(reference)
                result = self._result(reference, key, actor, is_done=reference in done)
                result = result.model_copy(update={"tries": max(tries, result.tries)})
                if result.outcome == "lost":
                    self._lost[actor].add(key)
                else:
                    self._lost[actor].clear()
                if result.outcome == "lost" and tries < _TRIES:
                    waiting.append((key, job, tries + 1))
                    continue
                self.results.keep(result)
                known[key] = result
                if seen is not None:
                    seen(result)
        return [known[job.key(self.settings)] for job in jobs]

    def close(self) -> None:
        """End all supervisors, and the cluster where it was started here."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._own_cluster:
            self._ray.shutdown()

    def _room(self, cpus: float, gpus: int) -> int:
        """How many supervisors the cluster has room for: Ray would wait for ever for more."""
        free: dict[str, float] = self._ray.cluster_resources()
        room = int(free.get("CPU", 0.0) / cpus)
        if gpus:
            room = min(room, int(free.get("GPU", 0.0)))
        if room < 1:
            have = f"{free.get('CPU', 0.0):g} CPUs and {free.get('GPU', 0.0):g} GPUs"
            raise EnvironmentMissingError(f"the cluster has {have}: no room for a judge", hint="add nodes")
        return room

    def _give(
        self,
        waiting: list[tuple[str, JudgeJob, int]],
        running: dict[Any, tuple[int, str, JudgeJob, int, float]],
    ) -> None:
        """Give each idle supervisor a job."""
        usable = [index for index in range(len(self._actors)) if len(self._lost[index]) < _STRIKES]
        if not usable:
            raise EnvironmentMissingError(
                f"all {len(self._actors)} judges lost {_STRIKES} jobs in a row",
                hint="look at the devices of their nodes, then try again: finished results are kept",
            )
        busy = {actor for actor, *_ in running.values()}
        for index in usable:
            if waiting and index not in busy:
                key, job, tries = waiting.pop(0)
                reference_text = Path(job.reference.partition(":")[0]).read_bytes()
                sent = self._actors[index].judge.remote(key, job.model_dump(), reference_text)
                running[sent] = (index, key, job, tries, time.monotonic())

    def _overdue(
        self, running: dict[Any, tuple[int, str, JudgeJob, int, float]], done: Sequence[Any]
    ) -> list[Any]:
        """Jobs whose supervisor says nothing any more."""
        limit_s = 2 * self._job_limit_s + _GRACE_S
        now_s = time.monotonic()
        return [ref for ref, row in running.items() if ref not in done and now_s - row[4] > limit_s]

    def _result(self, reference: Any, key: str, actor: int, *, is_done: bool) -> JobResult:
        """What the supervisor answered; a dead actor or node is no fault of the program."""
        if not is_done:
            self._ray.kill(self._actors[actor], no_restart=False)
            return JobResult(key=key, outcome="lost", message="the supervisor does not answer")
        try:
            return JobResult.model_validate(self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            return JobResult(key=key, outcome="lost", message=f"{type(error).__name__}: the node was lost")
