"""The references of a sweep: KernelBench's levels from a checkout, or a folder of files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.errors import UsageError


@dataclass(frozen=True)
class SuiteTask:
    """One reference of a sweep."""

    name: str
    """`level3/9_ResNet18`, or the file's name without its ending."""
    path: Path


def kernelbench_tasks(checkout: Path, levels: Sequence[int]) -> list[SuiteTask]:
    """The problems of these levels, in the order of their numbers.

    Args:
        checkout: a checkout of KernelBench, or the folder in it that holds `level1`.
        levels: which of its levels.

    Raises:
        UsageError: a level is not there.
    """
    root = checkout / "KernelBench" if (checkout / "KernelBench").is_dir() else checkout
    tasks: list[SuiteTask] = []
    for level in levels:
        files = sorted((root / f"level{level}").glob("*.py"), key=_number)
        if not files:
            raise UsageError(
                f"{root} holds no level{level}/*.py",
                hint="name a checkout of KernelBench with --path, and levels that it has with --level",
            )
        tasks.extend(SuiteTask(f"level{level}/{file.stem}", file) for file in files)
    return tasks


def folder_tasks(folder: Path) -> list[SuiteTask]:
    """Every `*.py` and `*.task.toml` of a folder, by name; a file beside its task.toml is no second task.

    Raises:
        UsageError: there is none.
    """
    tomls = {file.name.removesuffix(".task.toml"): file for file in folder.glob("*.task.toml")}
    files = {file.stem: file for file in folder.glob("*.py")} | tomls
    if not files:
        raise UsageError(f"{folder} holds no *.py file", hint="name a folder of references with --path")
    return [SuiteTask(name, files[name]) for name in sorted(files)]


def chosen(tasks: Sequence[SuiteTask], only: str) -> list[SuiteTask]:
    """The tasks whose name holds one of the comma-separated words; all for "".

    Raises:
        UsageError: there is none.
    """
    words = [word for word in only.split(",") if word]
    found = [task for task in tasks if not words or any(word in task.name for word in words)]
    if not found:
        raise UsageError(
            f"no task's name holds {only!r}", hint="name parts of file names, with commas between"
        )
    return found


def _number(file: Path) -> tuple[int, str]:
    found = re.match(r"\d+", file.name)
    return (int(found.group()) if found else 0, file.name)
