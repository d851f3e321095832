"""The demonstration: a packaged example, solved from end to end."""

import threading
from collections.abc import Callable
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Unpack

from stitch_mcp.api import solve
from stitch_mcp.config import Settings

if TYPE_CHECKING:
    from stitch_planner.loop import SolveResult

EXAMPLE = "mlp.py"


def solve_demo(
    *,
    emit: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    **settings: Unpack[Settings],
) -> "SolveResult":
    """The end of a run on the packaged example; needs no repository.

    Raises:
        EnvironmentMissingError: no torch, no compiler, or another thing that this machine lacks.
    """
    with as_file(files("stitch_mcp") / "examples") as folder:
        return solve(folder / EXAMPLE, quick=True, emit=emit, stop=stop, **settings)
