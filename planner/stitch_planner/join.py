"""Steps that somebody else does for a run: an outside agent's analysis, programs, checks and timings.

They are recorded with the same events as those of `solve`, so that either goes on with what the other began.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stitch_planner.runs.run import Run, Workspace, lost_step
from stitch_planner.runs.run_events import (
    KINDS,
    BenchFinished,
    BuildFinished,
    CheckFinished,
    DecisionMade,
    ProgramWritten,
    RunEvent,
    RunFinished,
    RunResumed,
)
from stitch_planner.sentences import explain
from stitch_tools.errors import LockedError, StoreError, UsageError
from stitch_tools.models import Bench, Build, Check, Program, Task
from stitch_tools.storage.events import Event

if TYPE_CHECKING:
    from stitch_planner.plan import Plan
    from stitch_tools.run.interpreter import Interpreter

OUTSIDE = "outside"
"""Coder of a run whose programs come from an outside agent."""
EventT = TypeVar("EventT", bound=RunEvent)
_ProgramEvent = ProgramWritten | BuildFinished | CheckFinished | BenchFinished


@contextlib.contextmanager
def joined(workspace: Workspace, run_id: str, *, wait_s: float = 10.0) -> Generator[Run]:
    """The run opened for writing, after up to `wait_s` seconds in which another process holds it.

    Raises:
        LockedError: that process still holds it; the message names it.
        UsageError: there is no such run.
    """
    folder = workspace.run_folder(run_id)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            run = Run(folder, workspace.store)
            break
        except LockedError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
    try:
        yield run
    finally:
        run.close()


def record_program(run: Run, program: Program) -> None:
    """Make `program` the run's current one, with all that the run knows of it already."""
    current = run.state.program
    if current is not None and current.program_id == program.program_id:
        if run.state.stopped is not None:
            run.record(RunResumed(step=run.state.resumed_at))
        return
    known = _events_of(run, program.program_id)
    last = _last(known, ProgramWritten)
    run.record(last or ProgramWritten(program=run.store.put_fact(program), program_id=program.program_id))
    for kind in (BuildFinished, CheckFinished, BenchFinished):
        if (event := _last(known, kind)) is not None:
            run.record(event)


def record_build(run: Run, program: Program, build: Build | None) -> None:
    """Record that the program was compiled; None for one in Python, which builds itself."""
    record_program(run, program)
    fact = run.store.put_fact(build) if build else None
    run.record(BuildFinished(program_id=program.program_id, build=fact, ok=build.ok if build else True))


def record_check(run: Run, program: Program, build: Build | None, check: Check) -> None:
    """Record that the program was compiled and checked."""
    record_build(run, program, build)
    fact = run.store.put_fact(check)
    run.record(CheckFinished(program_id=program.program_id, check=fact, status=check.status))


def record_bench(run: Run, program: Program, bench: Bench) -> None:
    """Record that the accepted program was timed."""
    record_program(run, program)
    fact = run.store.put_fact(bench)
    run.record(BenchFinished(program_id=program.program_id, bench=fact, outcome=bench.outcome))


def accepted_check(run: Run, program: Program) -> Check:
    """The check that accepted the program in this run, which is made its current one.

    Raises:
        UsageError: there is none.
    """
    record_program(run, program)
    event = run.state.check
    if event is None:
        raise UsageError(
            f"program {program.program_id[:16]} is not accepted: it was not checked in this run",
            hint="call check_program first",
        )
    if event.status != "accepted":
        others = accepted_programs(run.log.events)
        instead = f", or name program {others[0][:16]}, which was accepted in this run" if others else ""
        raise UsageError(
            f"program {program.program_id[:16]} is not accepted: its check says {event.status}",
            hint=f"mend it and check it again{instead}",
        )
    return run.store.get_fact(event.check, Check)


def verdicts(events: Iterable[Event]) -> dict[str, str]:
    """The last verdict on each program that was checked in a run, by program id, the newest last."""
    found: dict[str, str] = {}
    for event in _programs_events(events):
        if isinstance(event, CheckFinished):
            found.pop(event.program_id, None)
            found[event.program_id] = event.status
    return found


def accepted_programs(events: Iterable[Event]) -> list[str]:
    """Ids of the programs that a run accepted, the newest first."""
    found = verdicts(events)
    return [program_id for program_id in reversed(found) if found[program_id] == "accepted"]


def known_of(run: Run, program_id: str) -> tuple[Build | None, Check | None, Bench | None]:
    """The last build, check and timing of the program in this run; None where there was none."""
    known = _events_of(run, program_id)
    build, check = _last(known, BuildFinished), _last(known, CheckFinished)
    bench = _last(known, BenchFinished)
    store = run.store
    return (
        store.get_fact(build.build, Build) if build and build.build else None,
        store.get_fact(check.check, Check) if check else None,
        store.get_fact(bench.bench, Bench) if bench else None,
    )


def certify_program(run: Run, task: Task, program: Program, plan: "Plan") -> Path:
    """The certificate of the run's accepted program; the run is finished with it.

    Raises:
        UsageError: the program was not accepted in this run.
        StoreError: the archive cannot be written, or something that belongs into it is missing or damaged.
    """
    from stitch_planner.certify import certify_run

    record_program(run, program)
    lost = lost_step(run)
    if lost not in (None, "certificate"):
        raise StoreError(
            f"what the run's step '{lost}' had found is missing or damaged",
            hint="call solve with this run_id: it does that step again",
        )
    checked = accepted_check(run, program)
    state = run.state
    if state.certificate is not None and state.finished is not None and lost is None:
        return run.folder / state.certificate.file
    bench = run.store.get_fact(state.bench.bench, Bench) if state.bench else _untimed(checked)
    reason = explain(checked, bench)
    if bench.rejected:
        raise UsageError(f"the program's timing shows a cheat: {bench.message}", hint="write another program")
    run.record(DecisionMade(program_id=program.program_id, decision="accept", reason=reason))
    written = certify_run(run, task, plan)
    run.record(written)
    run.record(RunFinished(status=checked.status, outcome=bench.outcome, message=reason))
    return run.folder / written.file


def _untimed(checked: Check) -> Bench:
    return Bench(
        program_id=checked.program_id,
        task_id=checked.task_id,
        outcome="unmeasured",
        message="it was not timed before it was certified",
    )


def stitch_anew(run: Run, task: Task, interpreter: "Interpreter", emit: Callable[[str], None]) -> None:
    """Let the stitcher write the run's next program, in place of one that was not accepted.

    Raises:
        StitchFailedError: it has no template for an operation of the graph.
    """
    from stitch_planner.steps import STEPS, Work, write_program
    from stitch_tools.machine.devices import resolve_target

    with Work(
        run=run, task=task, target=resolve_target(task.target), interpreter=interpreter, emit=emit
    ) as work:
        for name, step in STEPS:
            if name in ("reference", "graph", "plan") and getattr(run.state, name) is None:
                step(work)
        write_program(work)


def take_usable(run: Run, task: Task, interpreter: "Interpreter", emit: Callable[[str], None]) -> None:
    """Put another program in the place of one that does not build or was not accepted.

    The newest that was accepted in this run, else one that the stitcher writes. A run without a program, or
    with one that is not judged yet, stays as it is.

    Raises:
        StitchFailedError: the stitcher has no template for an operation of the graph.
        StoreError: the accepted program is missing or damaged.
    """
    program, check = run.state.program, run.state.check
    rejected = check is not None and check.status != "accepted"
    built = run.state.build is None or run.state.build.ok
    if program is None or (built and not rejected):
        return
    accepted = accepted_programs(run.log.events)
    if not accepted:
        stitch_anew(run, task, interpreter, emit)
        return
    emit(f"going on with program {accepted[0][:16]}, which was accepted in this run")
    written = _last(_events_of(run, accepted[0]), ProgramWritten)
    assert written is not None, "a program is written before it is checked"
    record_program(run, run.store.get_fact(written.program, Program))


def _events_of(run: Run, program_id: str) -> list[_ProgramEvent]:
    return [event for event in _programs_events(run.log.events) if event.program_id == program_id]


def _programs_events(events: Iterable[Event]) -> list[_ProgramEvent]:
    found: list[_ProgramEvent] = []
    for event in events:
        kind = KINDS.get(event.kind)
        if kind in (ProgramWritten, BuildFinished, CheckFinished, BenchFinished):
            found.append(kind.model_validate(event.payload))  # pyright: ignore[reportArgumentType]
    return found


def _last(events: Sequence[RunEvent], kind: type[EventT]) -> EventT | None:
    return next((event for event in reversed(events) if isinstance(event, kind)), None)
