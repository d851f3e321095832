"""Completions: ids of this workspace, targets, reference files."""

from contextlib import suppress

from stitch_mcp.server.server_context import ServerContext
from stitch_tools.errors import StoreError

MOST = 100
_TARGETS = ("cpu", "cuda", "cuda:sm_80", "cuda:sm_89", "cuda:sm_90", "cuda:sm_100", "cuda:sm_120")
_IDS = ("id", "program", "artifact")


def complete(server_context: ServerContext, argument: str, prefix: str) -> list[str]:
    """Values of the argument that begin with `prefix`, the newest or likeliest first."""
    if argument == "run_id":
        values = list(reversed(server_context.workspace.run_ids()))
    elif argument == "job_id":
        values = server_context.supervisor.recent(MOST)
    elif argument == "target":
        values = list(_TARGETS)
    elif argument == "reference":
        values = sorted(
            path.name for pattern in ("*.py", "*.toml") for path in server_context.root.glob(pattern)
        )
    elif argument in _IDS:
        values = _programs(server_context)
    else:
        values = []
    return [value for value in values if value.startswith(prefix)]


def _programs(server_context: ServerContext) -> list[str]:
    from stitch_planner.runs.run import read_state

    names: list[str] = []
    for run_id in reversed(server_context.workspace.run_ids()[-MOST:]):
        with suppress(StoreError):  # One damaged run does not hide the others.
            state = read_state(server_context.workspace.runs_folder / run_id)
            names.extend(row.program_id[:16] for row in state.attempts)
    return list(dict.fromkeys(names))
