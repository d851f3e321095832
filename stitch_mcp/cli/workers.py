"""`stitch-mcp workers start` and `status`."""

from typing import TYPE_CHECKING

import click

from stitch_mcp.cli.options import json_option, workspace_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.cli.rl_serve import command as serve
from stitch_mcp.views.table import ReportSection

if TYPE_CHECKING:
    from stitch_mcp.backends.pool_status import PoolStatus


@click.group("workers")
def command() -> None:
    """Start workers that judge programs, or show what the workers of a workspace do."""


# One command under two names: a pool that others can send work to is what the reward service is.
command.add_command(serve, "start")


@command.command("status")
@workspace_option
@json_option
def status(workspace: str | None, as_json: bool) -> int:
    """Show the pools of this workspace that are at work: `workers start`, `rl train`, `suite`.

    The workspace of a training is its output folder, that of a sweep its --out folder.
    """
    from stitch_mcp.backends.pool_status import live_pools
    from stitch_mcp.cli.options import settings

    root = settings(workspace=workspace).workspace
    pools = live_pools(root)
    sections = [worker_section(f"{pool.purpose} (process {pool.pid})", pool.status) for pool in pools]
    none = ReportSection(notes=(f"no workers in {root}; start some with: stitch-mcp workers start",))
    fields = {"pools": pools}
    return CommandOutput("workers status", as_json=as_json).finish(fields, sections or [none])


def worker_section(title: str, pool: "PoolStatus") -> ReportSection:
    """What the workers of a pool do, for people."""
    rows = tuple(
        (row.name, row.state, row.doing, f"{row.since_s:.0f}", str(row.done), str(row.failed))
        for row in pool.workers
    )
    note = f"{pool.busy} of {len(rows)} busy, {pool.builds_waiting} wait to build; {pool.waiting} orders wait"
    return ReportSection(title, ("worker", "state", "doing", "for s", "done", "failed"), rows, (note,))
