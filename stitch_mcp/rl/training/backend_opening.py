"""Opens the backend that settings name."""

from pathlib import Path

from stitch_mcp.backends.pool_status import StatusFile
from stitch_mcp.rl.backends.jobs import JudgeSettings
from stitch_mcp.rl.backends.judge_backend import JudgeBackend, head_of
from stitch_mcp.rl.reward.judge_workers import local_judges, ray_judges
from stitch_mcp.rl.training.train_config import BackendTable


def open_backend(table: BackendTable, folder: Path) -> JudgeBackend:
    """A backend whose workspace and results lie in `folder`; a context manager.

    Raises:
        EnvironmentMissingError: Ray is asked for and not installed, or its cluster has no room.
    """
    settings = JudgeSettings(
        workspace=str(folder / "judge"),
        python=table.python,
        target=table.target,
        threads=table.threads,
        bench_budget_s=table.bench_budget_s,
        compile_baselines=table.compile_baselines,
        time_limit_s=table.job_limit_s / 2,
    )
    head = head_of(settings, table.build_slots)
    status_file = StatusFile(folder, "rl train")
    if table.kind == "ray":
        pool = ray_judges(
            head,
            address=table.address,
            workers=table.workers,
            limit_s=table.job_limit_s,
            status_file=status_file,
        )
    else:
        pool = local_judges(
            head,
            workers=table.workers,
            limit_s=table.job_limit_s,
            devices=table.devices,
            status_file=status_file,
        )
    return JudgeBackend(settings, table.results or folder / "results", pool)
