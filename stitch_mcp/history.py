"""Runs as they lie on disk, read without their lock: lists for people, one run in full."""

from pathlib import Path

from stitch_planner.runs.run import RunSummary, Workspace, read_state, started, summarize
from stitch_planner.runs.run_events import RunStopped
from stitch_tools.errors import StoreError
from stitch_tools.models import Bench, Build, Check, Fact, ReferenceFacts, Task
from stitch_tools.storage.events import Event, lock_path, read_events
from stitch_tools.storage.locks import is_held


class History(Fact):
    """All runs of one workspace."""

    workspace: str
    """Absolute path."""
    runs: tuple[RunSummary, ...]
    running: tuple[str, ...] = ()
    """Ids of those that a process works on now; an open run that is none of them was interrupted."""
    problems: tuple[str, ...] = ()
    """One sentence per run that cannot be read."""


class RunView(Fact):
    """One run in full."""

    run_id: str
    folder: str
    """Absolute path."""
    task: Task
    status: str
    """CheckStatus of the best program; before the end "open", or "failed" after an error."""
    outcome: str
    running: bool
    """Whether a process works on it now."""
    message: str
    """One sentence on how it ended, "" while it goes on."""
    stopped: RunStopped | None
    """Why it ended before its last step, None where it did not."""
    program_id: str | None
    certificate: str | None
    """Absolute path."""
    facts: ReferenceFacts | None
    build: Build | None
    check: Check | None
    bench: Bench | None
    events: tuple[Event, ...]

    @property
    def event_rows(self) -> list[tuple[str, str, str]]:
        """UTC time to the second, kind and the words of each event; hashes are left out."""
        return [(event.at[:19].replace("T", " "), event.kind, _words(event)) for event in self.events]


def list_history(root: Path) -> History:
    """The runs of a workspace, oldest first; one that cannot be read is named, not hidden."""
    workspace = Workspace(root)
    runs: list[RunSummary] = []
    problems: list[str] = []
    for run_id in workspace.run_ids():
        try:
            runs.append(summarize(workspace, run_id))
        except StoreError as error:
            problems.append(f"{run_id}: {error.message} ({error.hint})")
    folder = workspace.runs_folder
    running = tuple(row.run_id for row in runs if _is_running(folder / row.run_id, row.status))
    return History(
        workspace=str(root.absolute()), runs=tuple(runs), running=running, problems=tuple(problems)
    )


def _is_running(folder: Path, status: str) -> bool:
    # A run that was resumed after an error stays `failed` until its next event.
    return status in ("open", "failed") and is_held(lock_path(folder / "events.jsonl"))


def show_run(root: Path, run_id: str) -> RunView:
    """One run, named whole, by a unique beginning, or as "last".

    Raises:
        UsageError: no such run.
        StoreError: its log or a fact of it cannot be read.
    """
    workspace = Workspace(root)
    folder, store = workspace.run_folder(run_id), workspace.store
    state = read_state(folder)
    finished = state.finished
    return RunView(
        run_id=folder.name,
        folder=str(folder.absolute()),
        task=store.get_fact(started(state).task, Task),
        status=state.status,
        outcome=finished.outcome if finished else "unmeasured",
        running=_is_running(folder, state.status),
        message=state.message,
        stopped=state.stopped,
        program_id=state.program.program_id if state.program else None,
        certificate=str((folder / state.certificate.file).absolute()) if state.certificate else None,
        facts=store.get_fact(state.reference.facts, ReferenceFacts) if state.reference else None,
        # A program in Python builds itself when it is loaded: then the event names no build.
        build=store.get_fact(state.build.build, Build) if state.build and state.build.build else None,
        check=store.get_fact(state.check.check, Check) if state.check else None,
        bench=store.get_fact(state.bench.bench, Bench) if state.bench else None,
        events=tuple(read_events(folder / "events.jsonl")),
    )


def _words(event: Event) -> str:
    """The payload's short values; hashes and paths say nothing to a reader."""
    parts: list[str] = []
    for name, value in event.payload.items():
        plain = isinstance(value, bool | int | float) or (isinstance(value, str) and 0 < len(value) < 60)
        if plain and not name.endswith("_id") and name != "interpreter":
            parts.append(f"{name}={value}")
    return ", ".join(parts)
