"""The references of a sweep: KernelBench's levels from a checkout, or a folder of files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stitch_tools.errors import StoreError, TaskError, UsageError
from stitch_tools.storage.store import write_atomically
from stitch_tools.task.references import render_task_toml


@dataclass(frozen=True)
class SuiteTask:
    """One reference of a sweep."""

    name: str
    """`level3/9_ResNet18`, or the file's name without its ending."""
    path: Path
    number: int = 1
    """KernelBench's number in its level, or the place in the folder, from 1."""

    def is_each(self, step: int) -> bool:
        """Whether it is the first of `step` tasks by number: 1, 1 + step, ... whatever else is chosen."""
        return (self.number - 1) % step == 0


def level_numbers(text: str) -> list[int]:
    """The levels in a text like `1,3`, each once.

    Raises:
        UsageError: a word is no number.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"{text!r} names no levels", hint="name numbers with commas between: --level 1,2,3")
    return list(dict.fromkeys(map(int, words)))


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
        tasks.extend(SuiteTask(f"level{level}/{file.stem}", file, _number(file)[0]) for file in files)
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
    return [SuiteTask(name, files[name], place) for place, name in enumerate(sorted(files), 1)]


def chosen(tasks: Sequence[SuiteTask], only: str, every: int = 1) -> list[SuiteTask]:
    """Each `every`-th task by number whose name holds one of the comma-separated words; all for "".

    Raises:
        UsageError: there is none.
    """
    words = [word for word in only.split(",") if word]
    found = [
        task
        for task in tasks
        if task.is_each(every) and (not words or any(word in task.name for word in words))
    ]
    if not found:
        raise UsageError(
            f"no task's name holds {only!r}", hint="name parts of file names, with commas between"
        )
    return found


def in_mode(tasks: Sequence[SuiteTask], mode: str, folder: Path) -> list[SuiteTask]:
    """The tasks with `mode` in their contracts, by task files that are written to `folder`.

    A mode says what is computed, so a task file may state it, and nothing is `relaxed`. A task with a file of
    its own is left as it is: that says what was meant. So is one that cannot be read, as its run will say.

    Raises:
        StoreError: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error.strerror}", hint="name another --out") from error
    stated: list[SuiteTask] = []
    for task in tasks:
        if task.path.suffix == ".toml" or task.path.with_name(f"{task.path.stem}.task.toml").is_file():
            stated.append(task)
            continue
        reference = task.path.resolve()
        try:
            text = render_task_toml(str(reference), workspace=reference.parent, folder=folder)
        except TaskError:
            stated.append(task)
            continue
        file = folder / f"{task.name.replace('/', '-')}.toml"
        write_atomically(file, (text + f'mode = "{mode}"\n').encode("utf-8"), "--output")
        stated.append(replace(task, path=file))
    return stated


def _number(file: Path) -> tuple[int, str]:
    found = re.match(r"\d+", file.name)
    return (int(found.group()) if found else 0, file.name)
