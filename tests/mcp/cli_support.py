"""Runs the command line as a user does: a process of its own, in a folder of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-c", "from stitch_mcp.cli import main; raise SystemExit(main())")
"""`stitch-mcp`, also where no such script is installed."""


def call(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Exit code and the one object that a command with `--json` prints in a folder.

    Args:
        folder: the current folder.
        arguments: the command line, without `--json`.
        env: the whole environment, if it is not this process'.
    """
    done = subprocess.run(
        [*COMMAND, *arguments, "--json"], cwd=folder, env=env, capture_output=True, text=True, timeout=500
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode, done.stderr
    return done.returncode, found
