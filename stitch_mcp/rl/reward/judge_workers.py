"""Judges in processes of their own: what they are told, and the pool of those of this machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from sys import executable
from typing import Any

from stitch_mcp.backends.pool import WorkerPool
from stitch_mcp.backends.pool_status import StatusFile
from stitch_mcp.backends.ray_workers import RayCluster, RayWorker
from stitch_mcp.backends.supervisor import WorkerSupervisor
from stitch_mcp.backends.worker_process import WorkerProcess
from stitch_mcp.rl.reward.judging import JudgedSubmission, JudgeOptions, RewardTask
from stitch_mcp.rl.reward.submissions import Submission
from stitch_planner.runs.run import Workspace
from stitch_tools.models.base import Fact
from stitch_tools.models.task import Task

JUDGE = (executable, "-m", "stitch_mcp.rl.reward.judge_worker")


class JudgeHead(Fact):
    """The first line that a judge's process receives."""

    workspace: str
    """Folder of its store and builds."""
    config: dict[str, Any]
    """Further settings, as in `stitch_mcp.config.Settings`."""
    options: JudgeOptions


class JudgeOrder(Fact):
    """One submission to judge."""

    submission: Submission
    task: RewardTask | Task
    """A task's files lie in the store of the judge's workspace."""


JudgePool = WorkerPool[JudgeOrder, JudgedSubmission]


def judge_head(workspace: Path, settings: Mapping[str, object], options: JudgeOptions) -> JudgeHead:
    """The head for settings that may hold paths; what was not given is left out."""
    given = {name: value for name, value in settings.items() if value is not None and name != "workspace"}
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    return JudgeHead(workspace=str(workspace), config=plain, options=options)


def local_judges(
    head: JudgeHead,
    *,
    workers: int,
    limit_s: float,
    devices: Sequence[str] = (),
    status_file: StatusFile | None = None,
    command: Sequence[str] = JUDGE,
) -> JudgePool:
    """A pool of judges on this machine, whose processes start with their first orders.

    Args:
        head: how submissions are judged.
        workers: processes side by side. Timings take turns on each device whatever it says.
        limit_s: seconds after which a judgement is cancelled. The judge's own limits are shorter: this one
            ends a judge that hangs.
        devices: values of CUDA_VISIBLE_DEVICES that the workers take in turn; () leaves it as it is.
        status_file: see `WorkerPool`.
        command: what is started.
    """
    target = str(head.config.get("target", "cpu"))
    line = head.canonical_json()

    def worker(index: int) -> WorkerProcess[JudgedSubmission]:
        device = devices[index % len(devices)] if devices else None
        name = f"{target} {device}" if device else target
        return WorkerProcess(
            command, line, JudgedSubmission.from_json_bytes, name=name, limit_s=limit_s, device=device
        )

    return WorkerPool([worker(index) for index in range(max(1, workers))], status_file=status_file)


def ray_judges(
    head: JudgeHead,
    *,
    address: str | None,
    workers: int,
    limit_s: float,
    status_file: StatusFile | None = None,
    command: Sequence[str] = JUDGE,
) -> JudgePool:
    """A pool of judges on a Ray cluster, each with a GPU of its own where the target is one.

    Args:
        head: how submissions are judged; the workspace is a folder on each node.
        address: of a running cluster; None: one of this machine.
        workers: supervisors, or as many as there is room for.
        limit_s: as of `local_judges`.
        status_file: see `WorkerPool`.
        command: what a supervisor starts.

    Raises:
        EnvironmentMissingError: Ray is not installed, no cluster answers, or it has room for no judge.
    """
    cluster = RayCluster(address)
    target = str(head.config.get("target", "cpu"))
    given = (list(command), head.model_dump(mode="json"), limit_s)
    try:
        gpus = 1 if target.startswith("cuda") else 0
        actors = cluster.actors(WorkerSupervisor, given, workers=workers, gpus=gpus)
    except BaseException:  # handed on: the connection is of no use
        cluster.close()
        raise
    store = Workspace(Path(head.workspace)).store

    def files_of(order: JudgeOrder) -> dict[str, bytes]:
        rows = order.task.files if isinstance(order.task, Task) else ()
        return {row.sha256: store.get(row.sha256) for row in rows}

    judges = [
        RayWorker[JudgeOrder, JudgedSubmission](
            cluster.ray,
            actor,
            JudgedSubmission.from_json_bytes,
            name=f"{target} supervisor {index}",
            files_of=files_of,
        )
        for index, actor in enumerate(actors)
    ]
    return WorkerPool(judges, status_file=status_file, at_end=cluster.close)
