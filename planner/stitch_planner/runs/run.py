"""Run folders: where a run's events, readable copies and certificate lie."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stitch_planner.runs.attempts import EVIDENCE, Attempt
from stitch_planner.runs.run_events import RunEvent, RunStarted, kind_of
from stitch_planner.runs.state import PREPARATION, State, replay
from stitch_planner.runs.verdicts import with_verdicts
from stitch_tools.errors import StoreError, UsageError
from stitch_tools.models.base import Fact, sha256_hex
from stitch_tools.models.program import Program
from stitch_tools.models.task import Task
from stitch_tools.storage.certificate import MAX_ARCHIVE_BYTES
from stitch_tools.storage.events import Event, EventLog, read_events
from stitch_tools.storage.small_file import read_small
from stitch_tools.storage.store import Store, write_atomically

OUTSIDE = "outside"
"""Author of a program that came from outside and does not say by whom; coder of a run that waits for such."""


class Workspace:
    """The `.stitch` folder of one working directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".stitch"
        self.store = Store(self.folder / "store")
        self.runs_folder = self.folder / "runs"

    def prepare(self) -> None:
        """Make the folder, hidden from version control.

        Raises:
            StoreError: it cannot be written.
        """
        # A file inside the folder hides it from git without touching a .gitignore that belongs to the user.
        ignore = self.folder / ".gitignore"
        if not ignore.exists():
            write_atomically(ignore, b"*\n")

    def run_folder(self, run_id: str) -> Path:
        """The folder of a run, named whole or by a unique beginning; "last" is the newest.

        Raises:
            UsageError: no such run, or several.
        """
        names = self.run_ids()
        if run_id == "last" and names:
            return self.runs_folder / names[-1]
        # An empty text is the beginning of every id: it must name no run.
        matches = [name for name in names if name.startswith(run_id)] if run_id else []
        # A whole id is never ambiguous, even if another id begins with it.
        if run_id in matches:
            matches = [run_id]
        if len(matches) != 1:
            what = f"{len(matches)} runs begin with" if matches else "there is no run"
            hint = (
                "`stitch-mcp runs list` shows all runs" if names else "start one with `stitch-mcp solve REF`"
            )
            raise UsageError(f"{what} {run_id!r} in {self.runs_folder}", hint=hint)
        return self.runs_folder / matches[0]

    def run_ids(self) -> list[str]:
        """Names of all runs, oldest first."""
        if not self.runs_folder.is_dir():
            return []
        # Names begin with their UTC time, so their alphabetical order is the order of creation.
        return sorted(path.name for path in self.runs_folder.iterdir() if (path / "events.jsonl").exists())

    def new_run_folder(self, task: Task) -> Path:
        """A new folder `<time>-<task>-<hash>`; not made yet, so that an unused one leaves no trace."""
        # The task's name is text of the user's: only characters that are safe in paths of every system are
        # kept.
        stem = re.sub(r"[^A-Za-z0-9_]+", "-", task.name).strip("-") or "task"
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"[:-3] + f"-{stem[:40]}-{task.task_id[:8]}"
        return self.runs_folder / name


class RunSummary(Fact):
    """One line of `runs list`."""

    run_id: str
    task: str
    """Name of the task."""
    target: str
    status: str
    """CheckStatus of the best program; before the end "open", or "failed" after an error."""
    outcome: str
    message: str
    """One sentence on how it ended, "" while it is running."""
    reason: str
    """What of that sentence status, outcome and flags do not say; older runs have the whole sentence."""
    flags: tuple[str, ...] = ()
    """Flags of the best program, once the run is finished."""
    counts: bool | None = None
    """Whether the best program may be claimed; None before the end, and in older runs."""
    interrupted: bool = False
    """Whether it was at work when it ended; an open run that is not waits for the next call of an agent."""
    attempts: int
    """How many programs it met."""
    events: int


class Run:
    """A run opened for writing: its log and its replayed state."""

    def __init__(
        self, folder: Path, store: Store, *, on_event: Callable[[Event], None] | None = None
    ) -> None:
        """Open the run's log, making the folder if needed; `on_event` sees each event once it is durable.

        Raises:
            LockedError: another process works on it.
            StoreError: it cannot be read or written, or has a link.
        """
        # Checked before the log is opened, since opening it already creates a lock file.
        _refuse_links(folder)
        self.folder = folder
        self.store = store
        self.log = EventLog(folder / "events.jsonl", on_event=on_event)
        try:
            self.state = with_verdicts(replay(self.log.events), store)
        except BaseException:
            self.log.close()
            raise

    @property
    def run_id(self) -> str:
        """The folder's name."""
        return self.folder.name

    def record(self, event: RunEvent) -> State:
        """Append one event and return the state after it.

        Raises:
            StoreError: it cannot be written.
        """
        # Durable first, then in memory: `state` never knows more than a resumed run would.
        self.log.append(kind_of(event), event.model_dump(mode="json"))
        self.state = with_verdicts(self.state.after(event), self.store)
        return self.state

    def close(self) -> None:
        """Release the run."""
        self.log.close()


def _refuse_links(folder: Path) -> None:
    """Refuse a run that has a link: it may have come with a repository, and writes would follow it."""
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink():
                raise StoreError(
                    f"{path} is a link, and a run has none: writes would follow it",
                    hint="remove the link, or start a new run",
                )


@dataclass(frozen=True)
class LostStep:
    """A done step whose result the store lacks or holds damaged."""

    name: str
    program_id: str = ""
    """Program that it looked at; "" for a step of the run as a whole."""


_BLOBS = {
    "reference": ("facts",),
    "graph": ("graph", "ceilings"),
    "plan": ("plan",),
    "refinement": ("plan",),
    "build": ("build",),
    "check": ("check",),
    "bench": ("bench",),
}
"""Steps, and the fields of their events that name a blob."""


def lost_step(run: Run) -> LostStep | None:
    """The first done step whose result the store lacks or holds damaged; None where all is whole.

    Only the attempts that the run continues with are examined: the current one and the best.
    """
    state = run.state
    for name in PREPARATION:
        if not _is_whole(run.store, name, getattr(state, name)):
            return LostStep(name)
    # A run can hold many programs; reading the evidence on all of them would make each resumption slow.
    rows = {row.program_id: row for row in (state.current, state.best) if row is not None}
    for row in rows.values():
        if not _has_program(run.store, row):
            return LostStep("program", row.program_id)
        for name in EVIDENCE:
            if not _is_whole(run.store, name, getattr(row, name)):
                return LostStep(name, row.program_id)
    return None if has_whole_certificate(run.folder, state) else LostStep("certificate")


def _is_whole(store: Store, step: str, event: RunEvent | None) -> bool:
    named = [getattr(event, field) for field in _BLOBS[step]] if event else []
    try:
        for sha256 in filter(None, named):
            store.get(sha256)
    except StoreError:
        return False
    return True


def _has_program(store: Store, attempt: Attempt) -> bool:
    try:
        for file in store.get_fact(attempt.program.program, Program).files:
            store.get(file.sha256)
    except StoreError:
        return False
    return True


def has_whole_certificate(folder: Path, state: State) -> bool:
    """Whether the archive that the run's log names is there, byte by byte; also where it names none."""
    if state.certificate is None:
        return True
    try:
        # Bounded: somebody may have put a huge file or a pipe in the archive's place.
        data = read_small(folder / state.certificate.file, MAX_ARCHIVE_BYTES)
    except OSError:
        return False
    return sha256_hex(data) == state.certificate.sha256


def read_state(folder: Path) -> State:
    """The state of a run, without its lock.

    Raises:
        StoreError: the log cannot be read.
    """
    return replay(read_events(folder / "events.jsonl"))


def read_attempts(folder: Path, store: Store) -> State:
    """As `read_state`, with verdicts on the programs of older runs, as far as the store has the evidence.

    Raises:
        StoreError: the log cannot be read.
    """
    return with_verdicts(read_state(folder), store)


def started(state: State) -> RunStarted:
    """The run's first event.

    Raises:
        StoreError: the log holds none: the run was killed before it began.
    """
    if state.started is None:
        raise StoreError(
            "the run has no beginning", hint="it was stopped before its first event: solve again"
        )
    return state.started


def summarize(workspace: Workspace, run_id: str) -> RunSummary:
    """One run as a line.

    Raises:
        StoreError: its log cannot be read.
    """
    state = read_state(workspace.runs_folder / run_id)
    task = workspace.store.get_fact(started(state).task, Task)
    return RunSummary(
        run_id=run_id,
        task=task.name,
        target=task.target,
        status=state.status,
        outcome=state.finished.outcome if state.finished else "unmeasured",
        message=state.message,
        reason=(state.finished.reason if state.finished else "") or state.message,
        flags=state.finished.flags if state.finished else (),
        counts=state.finished.counts if state.finished else None,
        interrupted=_was_interrupted(state),
        attempts=len(state.attempts),
        events=state.events,
    )


def _was_interrupted(state: State) -> bool:
    """Whether an open run was at work on its own when it ended, unless it still is."""
    at_work = state.stopped or state.resumed or started(state).coder != OUTSIDE
    return state.status == "open" and bool(at_work)
