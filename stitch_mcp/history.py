"""Runs as they lie on disk, read without their lock: lists for people, one run in full."""

from pathlib import Path

from stitch_planner.plan import Plan
from stitch_planner.runs.attempt_evidence import AttemptEvidence, evidence_of
from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.model_calls import ModelCall
from stitch_planner.runs.reviews import Review
from stitch_planner.runs.run import RunSummary, Workspace, read_attempts, started, summarize
from stitch_planner.runs.run_events import PlanRefined, RunStopped
from stitch_planner.runs.state import State
from stitch_tools.errors import StoreError
from stitch_tools.models.base import Fact
from stitch_tools.models.program import Build
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.storage.events import Event, lock_path, read_events
from stitch_tools.storage.locks import holder
from stitch_tools.storage.store import Store


class History(Fact):
    """All runs of one workspace."""

    workspace: str
    """Absolute path."""
    runs: tuple[RunSummary, ...]
    running: tuple[str, ...] = ()
    """Ids of those that a process works on now; an open run that is none of them was interrupted or waits."""
    problems: tuple[str, ...] = ()
    """One sentence per run that cannot be read."""


class AttemptView(Fact):
    """One program of a run as a line."""

    round: int
    """Its folder below `rounds`: 0 is the run's first program."""
    program_id: str
    author: str
    """stitcher, a model's name, or `outside`; "" where an older run did not record it."""
    status: str
    """CheckStatus of the verdict; "open" before there is one."""
    flags: tuple[str, ...]
    counts: bool
    """Whether it may be claimed."""
    outcome: str
    """BenchOutcome against eager; "unmeasured" where it was not timed."""
    speedup: float | None
    """Median of eager time / program time."""
    safe_speedup: float | None
    """Lower end of the speedup's 95% interval, by which the best program is chosen."""
    review: Review | None
    """How its way of working is rated; None where nobody did."""
    best: bool
    certified: bool


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
    """One sentence on how it ended, "" while it is running."""
    stopped: RunStopped | None
    """Why it ended before its last step, None where it did not."""
    program_id: str | None
    """The program that the run ended with; before its end the best, else the one that was worked on last."""
    certificate: str | None
    """Absolute path."""
    attempts: tuple[AttemptView, ...]
    """Every program of the run, in the order in which it met them."""
    refinement: PlanRefined | None
    """What a model made of the plan; None where none was asked."""
    plan: Plan | None
    """The plan that it made; None where there is none, or it cannot be read."""
    calls: tuple[ModelCall, ...]
    """Questions to a language model, in their order."""
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
    # Read without the runs' locks: looking must work while a run is at work, and must not stop it.
    for run_id in workspace.run_ids():
        try:
            runs.append(summarize(workspace, run_id))
        except StoreError as error:
            hint = f" ({error.hint})" if error.hint else ""
            problems.append(f"{run_id}: {error.message}{hint}")
    folder = workspace.runs_folder
    running = tuple(row.run_id for row in runs if _is_running(folder / row.run_id, row.status))
    return History(
        workspace=str(root.absolute()), runs=tuple(runs), running=running, problems=tuple(problems)
    )


def _is_running(folder: Path, status: str) -> bool:
    # A run that was resumed after an error stays `failed` until its next event.
    return status in ("open", "failed") and bool(holder(lock_path(folder / "events.jsonl")))


def show_run(root: Path, run_id: str) -> RunView:
    """One run, named whole, by a unique beginning, or as "last".

    Raises:
        UsageError: no such run.
        StoreError: its log or a fact of it cannot be read.
    """
    workspace = Workspace(root)
    folder, store = workspace.run_folder(run_id), workspace.store
    state = read_attempts(folder, store)
    finished = state.finished
    evidence = _evidence(state, store)
    return RunView(
        run_id=folder.name,
        folder=str(folder.absolute()),
        task=store.get_fact(started(state).task, Task),
        status=state.status,
        outcome=finished.outcome if finished else "unmeasured",
        running=_is_running(folder, state.status),
        message=state.message,
        stopped=state.stopped,
        program_id=evidence.attempt.program_id if evidence else None,
        certificate=str((folder / state.certificate.file).absolute()) if state.certificate else None,
        attempts=tuple(_attempt_view(row, state) for row in state.attempts),
        refinement=state.refinement,
        plan=_refined_plan(state, store),
        calls=state.calls,
        facts=store.get_fact(state.reference.facts, ReferenceFacts) if state.reference else None,
        build=evidence.build if evidence else None,
        check=evidence.check if evidence else None,
        bench=evidence.bench if evidence else None,
        events=tuple(read_events(folder / "events.jsonl")),
    )


def _refined_plan(state: State, store: Store) -> Plan | None:
    hashed = state.refinement.plan if state.refinement else None
    try:
        return store.get_fact(hashed, Plan) if hashed else None
    except StoreError:
        return None  # The run does without it, and resuming makes it again.


def _evidence(state: State, store: Store) -> AttemptEvidence | None:
    return evidence_of(store, state.result, started(state).policy) if state.result else None


def _attempt_view(attempt: Attempt, state: State) -> AttemptView:
    bench, best, certificate = attempt.bench, state.best, state.certificate
    return AttemptView(
        round=attempt.round,
        program_id=attempt.program_id,
        author=attempt.author,
        status=attempt.status,
        flags=attempt.check.flags if attempt.check else (),
        counts=attempt.counts,
        outcome=bench.outcome if bench else "unmeasured",
        speedup=bench.speedup if bench else None,
        safe_speedup=bench.safe_speedup if bench else None,
        review=attempt.review.result if attempt.review else None,
        best=best is not None and best.program_id == attempt.program_id,
        certified=certificate is not None and certificate.program_id == attempt.program_id,
    )


def _words(event: Event) -> str:
    """The payload's short values; hashes and paths say nothing to a reader."""
    parts: list[str] = []
    for name, value in event.payload.items():
        # 60 characters leave out hashes, paths and messages.
        plain = isinstance(value, bool | int | float) or (isinstance(value, str) and 0 < len(value) < 60)
        if plain and not name.endswith("_id") and name != "interpreter":
            parts.append(f"{name}={value}")
    return ", ".join(parts)
