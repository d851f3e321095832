"""Commands that are printed for the user to type next: they have to work from where the user is."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from stitch_mcp.config import Settings, find_workspace
from stitch_tools.errors import UsageError
from stitch_tools.models.remedy import Remedy


def program_name() -> str:
    """How this program is called again from here: by name where that finds it on PATH, else as typed."""
    called = Path(sys.argv[0])
    if called.name != "stitch-mcp":
        return "stitch-mcp"
    path = shutil.which("stitch-mcp")
    # Another installation of the same name may come first on PATH: the short name would then call that one.
    if path is not None and os.path.realpath(path) == os.path.realpath(called):
        return "stitch-mcp"
    return shlex.quote(str(called))


def bench_command(
    reference: str,
    run_id: str,
    *,
    inputs: str | None = None,
    overrides: Sequence[str] = (),
    allow_relaxed: bool = False,
    **given: Unpack[Settings],
) -> str:
    """The command that times a run's program again, with the options that its `solve` was given."""
    parts = [reference, run_id, *(["--inputs", inputs] if inputs else [])]
    for pair in overrides:
        parts += ["--set", pair]
    parts += ["--allow-relaxed"] if allow_relaxed else []
    values: dict[str, object] = {**given}
    for name in ("workspace", "target", "python", "threads"):
        if values.get(name) is not None:
            parts += [f"--{name}", str(values[name])]
    return f"{program_name()} bench --quick {shlex.join(parts)}"


def remedy_command(remedy: Remedy, workspace: Path) -> str | None:
    """The command line that does what a remedy says; None where there is none."""
    named = remedy.arguments
    if remedy.tool == "solve" and "run_id" in named:
        return resume_command(workspace, str(named["run_id"]))
    if remedy.tool == "solve" and "reference" in named:
        return f"{program_name()} solve {shlex.quote(str(named['reference']))}"
    return None


def resume_command(workspace: Path, run_id: str) -> str:
    """The command that resumes a run of `workspace`, which is named unless it would be found anyway."""
    command = f"{program_name()} solve --resume {shlex.quote(run_id)}"
    try:
        default_workspace, _ = find_workspace(None, os.environ, Path.cwd())
    except UsageError:  # STITCH_WORKSPACE is wrong, and was overruled
        default_workspace = None
    return (
        command if default_workspace == workspace else f"{command} --workspace {shlex.quote(str(workspace))}"
    )
