"""What a call is about: paths, inline files and ids turned into content in the store. Runs none of it."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from stitch_mcp.jobs.state import JobRequest, Subject
from stitch_mcp.named_programs import program_of_files, read_program
from stitch_mcp.server.environment_fingerprint import fingerprint
from stitch_mcp.server.requests import (
    CALL_ONLY,
    REFERENCE,
    JudgesProgram,
    NamesContract,
    NamesProgram,
    NamesProgramOfRun,
    NamesReference,
    NamesSubject,
)
from stitch_mcp.server.server_context import MAX_INLINE_BYTES, ServerContext
from stitch_mcp.server.tool import Tool, ToolRequest
from stitch_mcp.workbench import refuse_forbidden
from stitch_planner.runs.run import read_state, started
from stitch_planner.runs.state import State
from stitch_planner.runs.verdicts import with_verdicts
from stitch_tools.errors import StoreError, TaskError, UsageError
from stitch_tools.models.base import Fact, sha256_hex
from stitch_tools.models.program import Program
from stitch_tools.models.task import Task
from stitch_tools.storage.store import checked_path
from stitch_tools.task.task_file import contract_values

FactT = TypeVar("FactT", bound=Fact)
MIN_PREFIX = 8


def job_request(server_context: ServerContext, tool: Tool, request: ToolRequest) -> JobRequest:
    """The work that a call asks for, its files in the store.

    Raises:
        UsageError: something that it names is not there, or lies outside the workspace.
        TaskError: the reference cannot be used.
        StoreError: the workspace cannot be read or written.
    """
    server_context.workspace.prepare()
    subject = _subject(server_context, request)
    arguments = request.model_dump(mode="json", exclude_defaults=True)
    # What only concerns the call (how long it waits, how detailed it answers) does not make another job.
    kept = {name: value for name, value in arguments.items() if name not in CALL_ONLY}
    # From here on everything is named by content, so that the same call can be made again from any place.
    for name, value in (
        ("reference", subject.task_id if not subject.run_id else None),
        ("program", subject.program_id),
        ("run_id", subject.run_id),
    ):
        kept.pop(name, None)
        if value and name in type(request).model_fields:
            kept[name] = value
    if against := getattr(request, "against", ""):
        other = stored(server_context, against, Program, needed=True)
        assert other is not None
        kept["against"] = keep_program(server_context, other)
    return JobRequest(
        tool=tool.name,
        arguments=kept,
        subject=subject,
        settings=dict(server_context.settings),
        environment=fingerprint(server_context.config),
    )


def _subject(server_context: ServerContext, request: ToolRequest) -> Subject:
    run_id = getattr(request, "run_id", "")
    folder = find_run_folder(server_context, run_id) if run_id else None
    state = read_state(folder) if folder else None
    task_id = program_id = None
    if state is not None:
        task_id = started(state).task
        program_id = _program_of_run(server_context, request, state)
    elif isinstance(request, NamesReference) and (request.reference or isinstance(request, NamesContract)):
        task_id = server_context.workspace.store.put_fact(_task(server_context, request))
    if isinstance(request, NamesSubject) and request.program == REFERENCE and task_id is not None:
        return Subject(task_id=task_id, program_id=None, run_id=folder.name if folder else None)
    if isinstance(request, NamesProgram | NamesProgramOfRun):
        program = _program(server_context, request, task_id)
        program_id = keep_program(server_context, program) if program else program_id
        if program_id is None and isinstance(request, NamesSubject) and task_id is not None:
            return Subject(task_id=task_id, program_id=None, run_id=folder.name if folder else None)
        if program_id is None:
            raise UsageError(
                "no program is named", hint="give `files`, `program`, or the `run_id` of a run that has one"
            )
        if task_id is None and isinstance(request, JudgesProgram):
            raise UsageError("no reference is named", hint="give `run_id`, or `reference`")
        stored_here = server_context.workspace.store.path(program_id).exists()
        if not stored_here and program_of_runs(server_context, program_id) is None:
            raise StoreError(f"program {program_id[:16]} is not in the store", hint="pass its files again")
    else:
        program_id = None
    return Subject(task_id=task_id, program_id=program_id, run_id=folder.name if folder else None)


def _program_of_run(server_context: ServerContext, request: ToolRequest, state: State) -> str | None:
    """The program that is meant where none is named: the newest, and where it is about a result, the best."""
    attempt = state.current
    if isinstance(request, NamesProgramOfRun):
        attempt = with_verdicts(state, server_context.workspace.store).best or attempt
    return attempt.program_id if attempt else None


def find_run_folder(server_context: ServerContext, run_id: str) -> Path:
    """The folder of a run that a call names.

    Raises:
        UsageError: there is no such run, or a link in it leads out of the workspace.
    """
    try:
        folder = server_context.workspace.run_folder(run_id)
    except UsageError as error:
        here = server_context.workspace.run_ids()[-3:]
        hint = f"the newest here: {', '.join(reversed(here))}" if here else "open one with analyze_reference"
        raise UsageError(error.message, hint=hint) from error
    server_context.refuse_links(folder)
    return folder


def keep_program(server_context: ServerContext, program: Program) -> str:
    """The program's id, its nameless form in the store under that very hash."""
    return server_context.workspace.store.put_fact(
        # Author and parent do not change what a program does: the same files are the same program.
        program.model_copy(update={"author": "", "parent_id": None})
    )


def program_of_runs(server_context: ServerContext, name: str) -> str | None:
    """The id that begins with `name` of a program of some run, which is then in the store under it.

    `solve` stores a program with its author, which has another hash than the program's id.
    """
    for run_id in reversed(server_context.workspace.run_ids()):
        # One damaged run does not hide the others.
        with suppress(StoreError):
            state = read_state(server_context.workspace.runs_folder / run_id)
            for attempt in state.attempts:
                if attempt.program_id.startswith(name):
                    program = server_context.workspace.store.get_fact(attempt.program.program, Program)
                    return keep_program(server_context, program)
    return None


def _task(server_context: ServerContext, request: NamesReference) -> Task:
    if known_task := stored(server_context, request.reference, Task):
        return known_task
    from stitch_tools.machine.devices import resolve_target
    from stitch_tools.task.references import load_task

    contract = request if isinstance(request, NamesContract) else None
    base, reference = server_context.root, request.reference
    if contract and contract.files:
        base = _unpacked(server_context, contract.files)
        reference = reference or _only_python(contract.files)
    elif not reference:
        raise UsageError(
            "no reference is named", hint="give `reference` (a path in the workspace) or `files`"
        )
    _refuse_outside(server_context, base, reference)
    if contract and contract.allow_relaxed:
        refuse_forbidden(server_context.config)
    task = load_task(
        reference,
        workspace=base,
        store=server_context.workspace.store,
        target=resolve_target((contract.target if contract else "") or server_context.config.target).name,
        overrides=contract_values(contract.contract, "`contract`") if contract else {},
        allow_relaxed=contract.allow_relaxed if contract else False,
        inputs=(contract.inputs if contract else "") or None,
    )
    if task.contract.relaxed:
        refuse_forbidden(server_context.config)
    # A task file may name further folders to import from: they are read by the reference's process.
    for folder in task.search_path:
        server_context.inside(folder)
    return task


def _refuse_outside(server_context: ServerContext, base: Path, reference: str) -> None:
    """Refuse a reference whose file, or a link where it may import from, leads out of the workspace."""
    head, colon, tail = reference.rpartition(":")
    plain = head if colon and tail.isidentifier() else reference
    path = server_context.inside(plain, base)
    folder = path if path.is_dir() else path.parent
    for link in folder.glob("*"):
        # No import reaches a hidden name, and a linked .venv is common.
        if link.is_symlink() and not link.name.startswith("."):
            try:
                server_context.inside(str(link))
            except UsageError as error:
                raise TaskError(
                    f"{link.name} beside the reference is a link out of the workspace",
                    hint="remove it, or copy its target",
                ) from error


def _program(
    server_context: ServerContext, request: NamesProgram | NamesProgramOfRun, task_id: str | None
) -> Program | None:
    target = _target(server_context, task_id)
    if isinstance(request, NamesProgramOfRun):
        return stored(server_context, request.program, Program, needed=True) if request.program else None
    if request.files:
        return program_of_files(
            _checked(request.files), server_context.workspace.store, target=target, main=request.main or None
        )
    if not request.program:
        return None
    if program := stored(server_context, request.program, Program):
        return program
    path = server_context.inside(request.program)
    for file in path.rglob("*") if path.is_dir() else ():
        if file.is_symlink():
            server_context.inside(str(file))
    return read_program(path, server_context.workspace.store, target=target, main=request.main or None)


def _target(server_context: ServerContext, task_id: str | None) -> str:
    if task_id is not None:
        return server_context.workspace.store.get_fact(task_id, Task).target
    from stitch_tools.machine.devices import resolve_target

    return resolve_target(server_context.config.target).name


def stored(
    server_context: ServerContext, name: str, kind: type[FactT], *, needed: bool = False
) -> FactT | None:
    """The fact in the store whose hash begins with `name`; None where `name` is no hash and not `needed`.

    Raises:
        UsageError: it is a hash, but of nothing here, of several things, or of another kind.
    """
    if len(name) < MIN_PREFIX or not set(name) <= set("0123456789abcdef"):
        if needed:
            word = kind.__name__.lower()
            raise UsageError(f"{name[:40]!r} is no {word}_id", hint=f"{word}_id comes from earlier results")
        return None
    folder = server_context.workspace.store.root / name[:2]
    matches = [path.name for path in folder.glob(f"{name}*")] if folder.is_dir() else []
    # A file may have a hexadecimal name.
    if not matches and (server_context.root / name).exists():
        return None
    if not matches and kind is Program and (program_id := program_of_runs(server_context, name)):
        matches = [program_id]
    word = kind.__name__.lower()
    if len(matches) != 1:
        what = "several things" if matches else f"no {word}"
        raise UsageError(
            f"{name[:16]} names {what} in this workspace", hint=f"{word}_id comes from earlier results"
        )
    try:
        return server_context.workspace.store.get_fact(matches[0], kind)
    except StoreError as error:
        raise UsageError(
            f"{name[:16]} is not a {word}", hint=f"{word}_id comes from earlier results"
        ) from error


def _checked(files: Mapping[str, str]) -> dict[str, bytes]:
    checked = {checked_path(name): text.encode("utf-8", "replace") for name, text in files.items()}
    total = sum(len(data) for data in checked.values())
    if total > MAX_INLINE_BYTES or len(checked) > 200:
        raise UsageError(
            f"{len(checked)} inline files of {total} bytes are too much",
            hint=f"at most 200 files of {MAX_INLINE_BYTES >> 20} MiB together; write them into the workspace",
        )
    return checked


def _unpacked(server_context: ServerContext, files: Mapping[str, str]) -> Path:
    """A folder of the workspace with the inline files, made again for equal files."""
    data = _checked(files)
    store = server_context.workspace.store
    entries = store.put_files(data)
    name = sha256_hex("\n".join(f"{entry.path} {entry.sha256}" for entry in entries).encode("utf-8"))[:16]
    # Named by content: equal files are unpacked once, and a path in a message stays valid.
    folder = server_context.root / ".stitch" / "inbox" / name
    store.materialize(entries, folder)
    return folder


def _only_python(files: Mapping[str, str]) -> str:
    names = [name for name in files if name.endswith((".py", ".toml"))]
    if len(names) != 1:
        raise UsageError("it is not clear which of `files` is the reference", hint="name it with `reference`")
    return names[0]
