"""Opens the backend that settings name."""

from pathlib import Path

from stitch_mcp.rl.backends.jobs import JudgeSettings
from stitch_mcp.rl.backends.local import LocalBackend
from stitch_mcp.rl.backends.ray_cluster import RayBackend
from stitch_mcp.rl.training.train_config import BackendTable


def open_backend(table: BackendTable, folder: Path) -> LocalBackend | RayBackend:
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
    results = table.results or folder / "results"
    if table.kind == "ray":
        return RayBackend(
            settings, results, address=table.address, workers=table.workers, job_limit_s=table.job_limit_s
        )
    return LocalBackend(
        settings,
        results,
        workers=table.workers,
        build_slots=table.build_slots,
        job_limit_s=table.job_limit_s,
        devices=table.devices,
    )
