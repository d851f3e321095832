"""Judges batches of submissions by a pool of judges, and keeps the results by content."""

from collections.abc import Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Self

from stitch_mcp.backends.pool import Attempted
from stitch_mcp.rl.backends.jobs import JobResult, JudgeJob, JudgeSettings, Seen
from stitch_mcp.rl.backends.results import ResultStore
from stitch_mcp.rl.reward.judge_workers import JudgeHead, JudgeOrder, JudgePool, judge_head
from stitch_mcp.rl.reward.judging import JudgedSubmission, JudgeOptions
from stitch_planner.runs.run import Workspace
from stitch_tools.models.task import Task
from stitch_tools.task.references import load_task


def head_of(settings: JudgeSettings, build_slots: int | None = None) -> JudgeHead:
    """What the workers of these settings are told.

    Args:
        settings: how submissions are judged.
        build_slots: compilers at work at once, over all workers of the workspace; None: one a CPU.
    """
    # A certificate for each of thousands of programs would cost more than it says: the results are kept.
    options = JudgeOptions(certify=False, submission_limit_s=settings.time_limit_s, build_slots=build_slots)
    return judge_head(Path(settings.workspace), settings.model_dump(), options)


class JudgeBackend:
    """Judges batches. A context manager; `judge` may be called from one thread at a time."""

    def __init__(self, settings: JudgeSettings, results: Path, pool: JudgePool) -> None:
        """A backend over a pool, which it closes.

        Args:
            settings: how submissions are judged.
            results: folder of the results by content hash.
            pool: judges of the head that `head_of(settings)` gives.
        """
        self.settings = settings
        self.results = ResultStore(results)
        self.pool = pool
        workspace = Workspace(Path(settings.workspace))
        workspace.prepare()
        self._store = workspace.store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def judge(self, jobs: Sequence[JudgeJob], seen: Seen | None = None) -> Sequence[JobResult]:
        """The results of the jobs, in their order; see `Backend`."""
        tasks = {name: self._task(name) for name in dict.fromkeys(job.reference for job in jobs)}
        keys = [job.key(tasks[job.reference], self.settings) for job in jobs]
        known: dict[str, JobResult] = {}
        futures: dict[Future[Attempted[JudgedSubmission]], str] = {}
        for key, job in dict(zip(keys, jobs, strict=True)).items():
            if (result := self.results.find(key)) is not None:
                known[key] = result
            else:
                order = JudgeOrder(submission=job.submission, task=tasks[job.reference])
                futures[self.pool.submit(order)] = key
        for future in as_completed(futures):
            result = _result(futures[future], future.result())
            self.results.keep(result)
            known[result.key] = result
            if seen is not None:
                seen(result)
        return [known[key] for key in keys]

    def close(self) -> None:
        """End all workers."""
        self.pool.close()

    def _task(self, reference: str) -> Task:
        # Which GPU it is, is known where it is judged.
        target = self.settings.target.partition(":")[0]
        return load_task(reference, workspace=Path.cwd(), store=self._store, target=target)


def _result(key: str, attempted: Attempted[JudgedSubmission]) -> JobResult:
    judged = attempted.answer
    return JobResult(
        key=key,
        outcome="judged" if attempted.outcome == "done" else attempted.outcome,
        evidence=judged.evidence if judged else None,
        message=attempted.message,
        tries=attempted.tries,
        wall_s=attempted.wall_s,
    )
