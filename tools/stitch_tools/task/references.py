"""Turns what a user points at into a Task, without running any of it.

A reference is a KernelBench-style file, an object in a file (`path.py:Object`), or a `task.toml`. Beside
`NAME.py` a file `NAME.task.toml` is read when it exists; one that describes something else is refused, for
neither its contract nor the lack of it may pass unnoticed. The reference server is what runs the reference.
"""

import ast
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from stitch_tools.errors import TaskError, UsageError
from stitch_tools.models.task import Task
from stitch_tools.storage.small_file import read_small
from stitch_tools.storage.store import Store
from stitch_tools.task.python_source import (
    PythonSource,
    local_modules,
    package_root,
    read_python,
    require_definition,
    required_arguments,
)
from stitch_tools.task.task_file import (
    TaskFile,
    build_contract,
    contract_values,
    read_task_file,
    task_file_text,
)

DEFAULT_ENTRY = "Model"
DEFAULT_INPUTS = "get_inputs"
DEFAULT_INIT_INPUTS = "get_init_inputs"
KERNEL_ENTRY, KERNEL_INPUTS = "ref_kernel", "generate_input"
"""Of GPU-MODE's tasks: a function of one argument, and what makes that from a seed."""
_TARGET = re.compile(r"cpu|cuda(:sm_\d+[af]?)?")
_MAX_FILE_BYTES = 256 << 20


@dataclass(frozen=True)
class _Makers:
    """The names in the main file that make the module and its inputs."""

    entry: str
    style: Literal["kernelbench", "object"]
    inputs: str
    init_inputs: str | None


@dataclass(frozen=True)
class _Pointer:
    """Where a reference lies and what was said about it, before the source is read."""

    file: Path
    entry: str | None
    task_file: TaskFile | None


def load_task(
    reference: str,
    *,
    workspace: Path,
    store: Store,
    target: str = "cpu",
    overrides: Mapping[str, object] | None = None,
    allow_relaxed: bool = False,
    inputs: str | None = None,
) -> Task:
    """The task that `reference` names, its files in the store.

    Args:
        reference: `path.py`, `path.py:Object`, a task file, or a folder with a `task.toml`; relative paths
            start at `workspace`.
        workspace: folder that relative paths start from.
        store: takes the source files.
        target: `cpu`, `cuda` or `cuda:sm_90`.
        overrides: contract keys that the caller sets, as in task.toml.
        allow_relaxed: accept values that ask for less than the task or the defaults do.
        inputs: the function that makes inputs; before what the task file says.

    Raises:
        TaskError: the reference cannot be read, has a syntax error or lacks an entry or input maker.
        UsageError: a bad override or target, or a loosening without `allow_relaxed`.
    """
    if not _TARGET.fullmatch(target):
        raise UsageError(f"unknown target {target!r}", hint="targets are cpu, cuda and cuda:sm_90")
    pointer = _locate(reference, workspace)
    _require_described(pointer)
    given = contract_values(overrides or {}, "overrides")
    said = pointer.task_file.contract if pointer.task_file else None
    contract = build_contract(said or {}, given, allow_relaxed=allow_relaxed, target=target)
    source = read_python(pointer.file)
    described = pointer.task_file or TaskFile(path=pointer.file)
    makers = _find_makers(source, pointer, described, inputs)
    root = package_root(pointer.file)
    files = {_relative(path, root): part.data for path, part in local_modules(source, root).items()}
    files.update(_extra_files(described, root))
    return Task(
        name=_plain_name(described.name or pointer.file.stem),
        files=store.put_files(files),
        main=_relative(pointer.file, root),
        entry=makers.entry,
        style=makers.style,
        inputs=makers.inputs,
        init_inputs=makers.init_inputs,
        search_path=_search_path(described),
        contract=contract,
        target=target,
    )


def render_task_toml(
    reference: str, *, workspace: Path, inputs: str | None = None, folder: Path | None = None
) -> str:
    """Text of a task.toml for `reference` (a Python file), to lie beside it or in `folder`; not written.

    Raises:
        TaskError: as in `load_task`.
    """
    pointer = replace(_locate(reference, workspace), task_file=None)
    source = read_python(pointer.file)
    makers = _find_makers(source, pointer, TaskFile(path=pointer.file), inputs)
    path = os.path.relpath(pointer.file, folder.resolve()) if folder else pointer.file.name
    named = Path(path).as_posix() + (f":{pointer.entry}" if pointer.entry else "")
    return task_file_text(
        named,
        name=_plain_name(pointer.file.stem),
        entry=makers.entry,
        inputs=makers.inputs,
        init_inputs=makers.init_inputs,
    )


def _locate(reference: str, workspace: Path) -> _Pointer:
    path, entry = _split(reference, workspace)
    if path.is_dir():
        path = path / "task.toml"
        if not path.exists():
            raise TaskError(
                f"the folder {path.parent} holds no task.toml",
                hint="name the reference file itself, or write one with: stitch-mcp task new REF",
            )
    if path.suffix not in (".py", ".toml"):
        problem = "is neither a Python file nor a task file" if path.exists() else "does not exist"
        raise TaskError(
            f"{reference!r} {problem}",
            hint=_REFERENCE_HINT,
        )
    if path.suffix != ".toml":
        contract = path.with_name(f"{path.stem}.task.toml")
        if not contract.is_file():
            return _Pointer(path, entry, None)
        task_file = read_task_file(contract)
        file, described = _described(task_file)
        return _Pointer(path, entry or (described if file == path else None), task_file)
    task_file = read_task_file(path)
    file, described = _described(task_file)
    return _Pointer(file, entry or described, task_file)


def _described(task_file: TaskFile) -> tuple[Path, str | None]:
    """File and object that a task file is about; None where it speaks of the file as a whole."""
    path, named = task_file.path, task_file.reference
    if named is None:
        if not path.name.endswith(".task.toml"):
            raise TaskError(f"{path} names no reference", hint='add a line: reference = "model.py"')
        named = path.name.removesuffix(".task.toml") + ".py"
    file, entry = _split(named, path.parent)
    if entry and task_file.entry and entry != task_file.entry:
        raise TaskError(
            f"{path} names two entries: {entry} in reference, and {task_file.entry} in entry",
            hint="remove one of them",
        )
    return file, entry or task_file.entry


def _require_described(pointer: _Pointer) -> None:
    """Refuse a task file whose inputs and contract were written for something else."""
    if pointer.task_file is None:
        return
    file, entry = _described(pointer.task_file)
    own = pointer.task_file.path
    if file != pointer.file:
        raise TaskError(
            f"{own} lies beside {pointer.file.name} and describes {file}",
            hint=f"correct its `reference`, or give it a name that fits {file.name}",
        )
    if entry not in (None, pointer.entry):
        raise TaskError(
            f"{own} describes {file.name}:{entry}, and {pointer.entry} is asked for: its inputs and contract"
            " are not meant for that",
            hint=f"give {pointer.entry} a task file of another name, with"
            f' reference = "{file.name}:{pointer.entry}", and name that file in place of the reference',
        )


def _split(reference: str, base: Path) -> tuple[Path, str | None]:
    """Path and object of `path.py:Object`; a colon inside the path itself is left alone.

    Raises:
        TaskError: there can be no such path, or one that cannot be sent on.
    """
    head, colon, tail = reference.rpartition(":")
    try:
        whole = base / Path(reference).expanduser()
        if colon and not whole.exists() and re.fullmatch(r"[A-Za-z_]\w*", tail):
            path, entry = (base / Path(head).expanduser()).resolve(), tail
        else:
            path, entry = whole.resolve(), None
        path.exists()
        str(path).encode("utf-8")
    except UnicodeEncodeError as error:
        raise TaskError(
            f"the path {_shown(reference)} is not UTF-8", hint="rename the file or folder"
        ) from error
    # A loop of links is a RuntimeError before Python 3.13, as an unknown user in `~user` still is.
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TaskError(
            f"{_shown(reference)} cannot be found: {_shown(reason or '')}", hint=_REFERENCE_HINT
        ) from error
    return path, entry


_REFERENCE_HINT = "give path.py, path.py:Object, a .toml file or a folder with a task.toml"


def _shown(text: str) -> str:
    """The text so that it can be printed, cut where it is longer than any path."""
    plain = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return plain if len(plain) < 300 else f"{plain[:300]}..."


def _find_makers(source: PythonSource, pointer: _Pointer, said: TaskFile, inputs: str | None) -> _Makers:
    names = source.definitions()
    is_kernel = DEFAULT_ENTRY not in names and KERNEL_ENTRY in names
    entry = pointer.entry or (KERNEL_ENTRY if is_kernel else DEFAULT_ENTRY)
    definition = require_definition(source, entry, "the entry")
    is_kernel = DEFAULT_INPUTS not in names and KERNEL_INPUTS in names
    maker = inputs or said.inputs or (KERNEL_INPUTS if is_kernel else DEFAULT_INPUTS)
    _check_callable(source, maker, require_definition(source, maker, "the input maker"))
    init = said.init_inputs
    if init is not None:
        _check_callable(source, init, require_definition(source, init, "the maker of constructor arguments"))
    elif not isinstance(definition, (ast.FunctionDef, ast.Assign)) and DEFAULT_INIT_INPUTS in names:
        init = DEFAULT_INIT_INPUTS
    return _Makers(entry, "object" if pointer.entry else "kernelbench", maker, init)


def _check_callable(source: PythonSource, name: str, statement: ast.stmt | None) -> None:
    """Refuse a maker that plainly cannot be called without arguments."""
    if isinstance(statement, (ast.AsyncFunctionDef, ast.ClassDef)):
        raise TaskError(
            f"{source.path}:{statement.lineno}: `{name}` is not a plain function",
            hint=f"write `def {name}():` that returns a list",
        )
    required = required_arguments(statement) if isinstance(statement, ast.FunctionDef) else []
    given = ["seed"] if name == KERNEL_INPUTS else []
    if statement is not None and not set(required) <= set(given):
        raise TaskError(
            f"{source.path}:{statement.lineno}: `{name}` needs arguments ({', '.join(required)})",
            hint="it is called with a seed alone; give the others defaults (the sizes of a benchmark),"
            f" or write get_inputs() that returns [{name}(...)]"
            if given
            else "it is called without any; give them defaults",
        )


def _extra_files(said: TaskFile, root: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in said.files:
        path = (said.path.parent / name).resolve()
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                raise TaskError(
                    f"{path} is larger than {_MAX_FILE_BYTES >> 20} MiB",
                    hint="list its folder as search_path instead: it is then read where it lies",
                )
            found[_relative(path, root)] = read_small(path, _MAX_FILE_BYTES)
        except OSError as error:
            raise TaskError(
                f"{said.path}: files names {name!r}, which cannot be read: {error.strerror or error}",
                hint="paths are relative to the task file",
            ) from error
    return found


def _search_path(said: TaskFile) -> tuple[str, ...]:
    folders = [(said.path.parent / name).resolve() for name in said.search_path]
    for folder in folders:
        if not folder.is_dir():
            raise TaskError(
                f"{said.path}: search_path names {folder}, which is not a folder",
                hint="paths are relative to the task file",
            )
    return tuple(str(folder) for folder in folders)


def _relative(path: Path, root: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError as error:
        raise TaskError(
            f"{path} lies outside the reference's folder {root}", hint="put it beside the reference"
        ) from error


def _plain_name(name: str) -> str:
    """A name that is safe in a folder's name; letters of any script stay."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[:60] or "task"
