"""Where and on what a table was made, in words."""

import datetime
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def conditions(python: str) -> dict[str, str]:
    """Date, revision, machine and interpreter; `unknown` for what nobody says."""
    version = "import sys, torch; print(f'Python {sys.version.split()[0]}, torch {torch.__version__}')"
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "revision": revision(ROOT),
        "machine": f"{cpu_name()}, {len(os.sched_getaffinity(0))} CPUs",
        "interpreter": said([python, "-c", version]),
    }


def revision(folder: Path | str) -> str:
    """The commit of a checkout, with a remark where files differ from it; `unknown` of any other folder."""
    git = ["git", "-C", str(folder)]
    if said([*git, "rev-parse", "--show-prefix"]):
        return "unknown"  # a copy inside of another checkout, whose commit says nothing of it
    changed = said([*git, "status", "--porcelain", "--untracked-files=no"])
    return said([*git, "rev-parse", "--short", "HEAD"]) + (" with changes" if changed else "")


def cpu_name() -> str:
    """The CPU's model."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def said(command: Sequence[str]) -> str:
    """What a command prints, or `unknown`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git in a container
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def in_lines(found: dict[str, str]) -> list[str]:
    """One line of Markdown for each condition."""
    return [f"{name[0].upper()}{name[1:]}: {text}.  " for name, text in found.items()]
