"""Everything that a report tells of a run, read without its lock; what is damaged is named and left out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stitch_planner.llm.chat import ChatAnswer
from stitch_planner.plan import Plan
from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.model_calls import ModelCall
from stitch_planner.runs.run import Workspace, has_whole_certificate, started
from stitch_planner.runs.run_events import RunStarted
from stitch_planner.runs.state import State, replay
from stitch_planner.runs.verdicts import verdict_on, with_verdicts
from stitch_tools.errors import StoreError
from stitch_tools.models.acceptance import Verdict
from stitch_tools.models.environment import Environment
from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import SourceFile, Task
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.storage.events import read_events
from stitch_tools.storage.store import FactT, Store

_LARGEST_SOURCE_BYTES = 1 << 20


@dataclass(frozen=True)
class ProgramFacts:
    """One program with the evidence on it. A fact is None where there is none, or where it is missing."""

    attempt: Attempt
    program: Program | None
    build: Build | None
    check: Check | None
    bench: Bench | None
    verdict: Verdict | None

    @property
    def name(self) -> str:
        """Its number in the run, as its folder has it."""
        return f"{self.attempt.round:03d}"


@dataclass(frozen=True)
class CallFacts:
    """One question to a model with its answer, None where there is none or it is missing."""

    call: ModelCall
    answer: ChatAnswer | None


@dataclass(frozen=True)
class RunFacts:
    """A run with all its programs."""

    run_id: str
    folder: Path
    state: State
    begun: RunStarted
    first_at: str
    """UTC time of the first event, ISO 8601."""
    last_at: str
    """UTC time of the newest event."""
    task: Task | None
    environment: Environment | None
    plan: Plan | None
    """The plan that a model refined; None where there is none, or it is missing."""
    programs: tuple[ProgramFacts, ...]
    """In the order in which the run met them."""
    calls: tuple[CallFacts, ...]
    sources: Mapping[str, str]
    """Text of each source file by its hash. One that is missing, or too large to be shown, has none."""
    missing: tuple[str, ...]
    """One sentence for each fact or file that cannot be read."""

    def program(self, program_id: str | None) -> ProgramFacts | None:
        """The program of that id, None where the run does not know it."""
        return next((row for row in self.programs if row.attempt.program_id == program_id), None)

    @property
    def subject(self) -> ProgramFacts | None:
        """The program that is shown in full: the best one, else the one that was worked on last."""
        result = self.state.result
        return self.program(result.program_id) if result else None


class _Reader:
    """Reads facts and files from a store; keeps a sentence on each one that cannot be read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._problems: dict[str, str] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems.values())

    def note(self, sha256: str, what: str, problem: str) -> None:
        """Keep a sentence about a blob; the first one about it stands."""
        self._problems.setdefault(sha256, f"{what}: {problem}")

    def fact(self, sha256: str | None, kind: type[FactT], what: str) -> FactT | None:
        """The fact of that hash; None where there is none, or it cannot be read."""
        if not sha256:
            return None
        try:
            return self._store.get_fact(sha256, kind)
        except StoreError as error:
            self.note(sha256, what, error.message)
            return None

    def text(self, file: SourceFile, what: str) -> str | None:
        """A file's text, whatever its encoding; None where it is too large or cannot be read."""
        if file.size > _LARGEST_SOURCE_BYTES:
            self.note(file.sha256, what, f"{file.path} has {file.size} bytes and is not shown")
            return None
        try:
            return self._store.get(file.sha256).decode("utf-8", "replace")
        except StoreError as error:
            self.note(file.sha256, f"{what}, file {file.path}", error.message)
            return None


def read_run(root: Path, run_id: str) -> RunFacts:
    """The facts of a run, named whole, by a unique beginning, or as "last".

    Raises:
        UsageError: no such run.
        StoreError: its log cannot be read, or has no event.
    """
    workspace = Workspace(root)
    folder = workspace.run_folder(run_id)
    # One reading for times and state: a run at work adds events between two.
    events = read_events(folder / "events.jsonl")
    state = with_verdicts(replay(events), workspace.store)
    begun = started(state)
    reader = _Reader(workspace.store)
    task = reader.fact(begun.task, Task, "the task")
    environment = reader.fact(begun.environment, Environment, "the environment")
    programs = tuple(_program_facts(row, reader, begun) for row in state.attempts)
    refined = state.refinement.plan if state.refinement else None
    plan = reader.fact(refined, Plan, "the refined plan")
    calls = tuple(_call_facts(row, reader) for row in state.calls)
    sources = _read_sources(task, programs, reader)
    missing = list(reader.problems)
    if state.certificate is not None and not has_whole_certificate(folder, state):
        missing.append(f"the certificate {state.certificate.file}: it is missing, or not what was written")
    return RunFacts(
        run_id=folder.name,
        folder=folder.absolute(),
        state=state,
        begun=begun,
        first_at=events[0].at,
        last_at=events[-1].at,
        task=task,
        environment=environment,
        plan=plan,
        programs=programs,
        calls=calls,
        sources=sources,
        missing=tuple(missing),
    )


def _program_facts(attempt: Attempt, reader: _Reader, begun: RunStarted) -> ProgramFacts:
    where = f"program {attempt.round:03d}"
    build, check, bench = attempt.build, attempt.check, attempt.bench
    checked = reader.fact(check.check if check else None, Check, f"{where}, check")
    timed = reader.fact(bench.bench if bench else None, Bench, f"{where}, times")
    # A verdict without the times that the run decided on would be another one.
    whole = checked is not None and (timed is not None or bench is None)
    return ProgramFacts(
        attempt=attempt,
        program=reader.fact(attempt.program.program, Program, where),
        build=reader.fact(build.build if build else None, Build, f"{where}, build"),
        check=checked,
        bench=timed,
        verdict=verdict_on(checked, timed, begun.policy) if checked and whole else None,
    )


def _call_facts(call: ModelCall, reader: _Reader) -> CallFacts:
    stored = call.answered.answer if call.answered else None
    return CallFacts(call, reader.fact(stored, ChatAnswer, f"answer to call {call.asked.call:03d}"))


def _read_sources(task: Task | None, programs: Iterable[ProgramFacts], reader: _Reader) -> dict[str, str]:
    named = [(file, "the reference") for file in (task.files if task else ())]
    for row in programs:
        named += [(file, f"program {row.name}") for file in (row.program.files if row.program else ())]
    texts: dict[str, str | None] = {}
    # Programs of a run share most of their files.
    for file, what in named:
        if file.sha256 not in texts:
            texts[file.sha256] = reader.text(file, what)
    return {sha256: text for sha256, text in texts.items() if text is not None}
