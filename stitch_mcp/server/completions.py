"""Completions: ids of this workspace, targets, reference files."""

from contextlib import suppress

from stitch_mcp.server.room import Room
from stitch_tools.errors import StoreError

MOST = 100
_TARGETS = ("cpu", "cuda", "cuda:sm_80", "cuda:sm_89", "cuda:sm_90", "cuda:sm_100", "cuda:sm_120")
_IDS = ("id", "program", "artifact")


def complete(room: Room, argument: str, begun: str) -> list[str]:
    """Values of the argument that begin with `begun`, the newest or likeliest first."""
    if argument == "run_id":
        found = list(reversed(room.workspace.run_ids()))
    elif argument == "job_id":
        found = room.supervisor.recent(MOST)
    elif argument == "target":
        found = list(_TARGETS)
    elif argument == "reference":
        found = sorted(path.name for pattern in ("*.py", "*.toml") for path in room.root.glob(pattern))
    elif argument in _IDS:
        found = _programs(room)
    else:
        found = []
    return [value for value in found if value.startswith(begun)]


def _programs(room: Room) -> list[str]:
    from stitch_planner.runs import read_state

    found: list[str] = []
    for run_id in reversed(room.workspace.run_ids()[-MOST:]):
        with suppress(StoreError):  # One damaged run does not hide the others.
            state = read_state(room.workspace.runs_folder / run_id)
            if state.program is not None:
                found.append(state.program.program_id[:16])
    return list(dict.fromkeys(found))
