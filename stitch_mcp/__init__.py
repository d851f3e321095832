"""stitch-mcp: from a PyTorch reference to a verified, faster native program.

The public functions are imported when they are first used: `import stitch_mcp` itself loads nothing.
"""

from typing import TYPE_CHECKING

from stitch_tools import __version__

if TYPE_CHECKING:
    from stitch_mcp.api import (
        benchmark_program,
        check_program,
        compile_program,
        load_task,
        profile_program,
        solve,
    )
    from stitch_mcp.program_loading import load_program
    from stitch_mcp.report.report_file import write_report

_HOMES = {
    "benchmark_program": "stitch_mcp.api",
    "check_program": "stitch_mcp.api",
    "compile_program": "stitch_mcp.api",
    "load_program": "stitch_mcp.program_loading",
    "load_task": "stitch_mcp.api",
    "profile_program": "stitch_mcp.api",
    "solve": "stitch_mcp.api",
    "write_report": "stitch_mcp.report.report_file",
}

__all__ = [
    "__version__",
    "benchmark_program",
    "check_program",
    "compile_program",
    "load_program",
    "load_task",
    "profile_program",
    "solve",
    "write_report",
]


def __getattr__(name: str) -> object:
    """The public function of that name, imported now."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stitch_mcp' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*globals(), *_HOMES])
