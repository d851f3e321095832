"""Records what is found out about a run's programs: the same events for the built-in loop and outside agents.

Blobs are stored before the event that names them, so that a kill between the two loses nothing but work.
"""

from pathlib import Path

from stitch_planner.plan import Plan
from stitch_planner.runs.attempt_evidence import AttemptEvidence
from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.run import OUTSIDE, LostStep, Run, started
from stitch_planner.runs.run_events import (
    BuildFinished,
    CheckFinished,
    GraphCaptured,
    PlanMade,
    PlanRefined,
    ProgramWritten,
    ReferenceObserved,
    RunFinished,
    RunResumed,
    RunStopped,
    kind_of,
)
from stitch_planner.runs.verdicts import timed_event, verdict_on
from stitch_planner.sentences import explain_reason
from stitch_tools.errors import StitchError, StoreError
from stitch_tools.models.acceptance import Verdict
from stitch_tools.models.graph import Ceilings, Graph
from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import ReferenceFacts
from stitch_tools.models.verdict import Bench, Check

_LONGEST_TEXT = 2000
"""Characters of a stop's message or hint that are kept."""
_NAMELESS = ("", "unknown")
_RESUMED = kind_of(RunResumed(step=""))


def sources_folder(run_folder: Path, place: int) -> Path:
    """Where a run lays out its program number `place` for people."""
    return run_folder / "rounds" / f"{place:03d}" / "program"


def record_reference(run: Run, facts: ReferenceFacts) -> None:
    """Record that the reference ran once."""
    run.record(ReferenceObserved(facts=run.store.put_fact(facts), warnings=facts.warnings))


def record_graph(run: Run, graph: Graph, ceilings: Ceilings | None) -> str:
    """Record the captured forward, and the device's limits where it is here; returns the graph's hash."""
    # The blob is stored before its event, see above.
    hashed = run.store.put_fact(graph)
    limits = run.store.put_fact(ceilings) if ceilings else None
    run.record(GraphCaptured(graph=hashed, ceilings=limits, source=graph.source))
    return hashed


def record_plan(run: Run, plan: Plan) -> str:
    """Record the order of work; returns the plan's hash."""
    hashed = run.store.put_fact(plan)
    run.record(PlanMade(plan=hashed, steps=len(plan.steps)))
    return hashed


def record_refinement(run: Run, author: str, plan: Plan | None, problem: str) -> None:
    """Record the plan that a model made, or why there is none."""
    run.record(
        PlanRefined(
            plan=run.store.put_fact(plan) if plan else None,
            author=author,
            steps=len(plan.steps) if plan else 0,
            predicted_us=plan.predicted_us if plan else None,
            problem=problem[:_LONGEST_TEXT],
        )
    )


def record_program(run: Run, program: Program, *, notes: tuple[str, ...] = ()) -> Attempt:
    """Make `program` the run's current one, with all that the run knows of it already.

    A new one is laid out for people, too.
    """
    attempt = run.state.attempt(program.program_id)
    current = run.state.current
    if attempt is not None and not attempt.lost:
        if current is None or current.program_id != attempt.program_id:
            run.record(attempt.program)
        elif run.state.stopped is not None:
            run.record(RunResumed(step=run.state.resumed_at, lost=False))
        return _attempt(run, program)
    # A program that was lost keeps its number, so that its folder of sources stays the same.
    place = attempt.round if attempt is not None else len(run.state.attempts)
    # Sources are laid out before the event: a run that names a program always has its folder.
    run.store.materialize(program.files, sources_folder(run.folder, place))
    author = OUTSIDE if program.author in _NAMELESS else program.author
    stored = run.store.put_fact(program)
    run.record(
        ProgramWritten(
            program=stored,
            program_id=program.program_id,
            author=author,
            parent_id=program.parent_id,
            notes=notes,
        )
    )
    return _attempt(run, program)


def record_build(run: Run, program: Program, build: Build | None) -> None:
    """Record that the program was compiled; None for one in Python, which builds itself."""
    record_program(run, program)
    fact = run.store.put_fact(build) if build else None
    run.record(BuildFinished(program_id=program.program_id, build=fact, ok=build.ok if build else True))


def record_check(run: Run, program: Program, check: Check) -> Verdict:
    """Record what the check found; the verdict takes a timing into account that there is already."""
    attempt = record_program(run, program)
    bench = run.store.get_fact(attempt.bench.bench, Bench) if attempt.bench else None
    # The run's own policy: what counts must not change because a later call has other settings.
    decided = verdict_on(check, bench, started(run.state).policy)
    run.record(
        CheckFinished(
            program_id=program.program_id,
            check=run.store.put_fact(check),
            status=decided.status,
            flags=decided.flags,
            counts=decided.counts,
        )
    )
    return decided


def record_bench(run: Run, program: Program, bench: Bench) -> Verdict:
    """Record how fast the checked program is, and what that changes about its verdict.

    Raises:
        StoreError: it was never checked, or its check is damaged.
    """
    attempt = record_program(run, program)
    if attempt.check is None:
        raise StoreError("a program is timed without a check", hint="this is a fault of ours; check it first")
    check = run.store.get_fact(attempt.check.check, Check)
    decided = verdict_on(check, bench, started(run.state).policy)
    run.record(timed_event(bench, run.store.put_fact(bench), decided))
    return decided


def record_stop(run: Run, step: str, error: BaseException) -> None:
    """Record that the run ends early at `step`, and why."""
    if isinstance(error, StitchError):
        code, message, hint = error.code, error.message, error.hint
    elif isinstance(error, KeyboardInterrupt):
        code, message, hint = "interrupted", "stopped at once; the finished steps are kept", ""
    else:
        code, message, hint = "internal", f"{type(error).__name__}: {error}", ""
    run.record(RunStopped(step=step, code=code, message=message[:_LONGEST_TEXT], hint=hint[:_LONGEST_TEXT]))


def record_resumption(run: Run, lost: LostStep | None) -> None:
    """Record that the run is resumed: at the lost step, else at the open one."""
    if lost is not None:
        run.record(RunResumed(step=lost.name, program_id=lost.program_id))
    # Once for any number of attempts that ended before their first step.
    elif run.log.events[-1].kind != _RESUMED:
        run.record(RunResumed(step=run.state.resumed_at, lost=False))


def record_end(run: Run, evidence: AttemptEvidence) -> None:
    """Record that the run ends with this evidence.

    Raises:
        StoreError: the attempt was never checked.
    """
    if evidence.check is None or evidence.verdict is None:
        raise StoreError("the run ends without a check", hint="this is a fault of ours; solve again")
    run.record(
        RunFinished(
            status=evidence.verdict.status,
            outcome=evidence.bench.outcome if evidence.bench else "unmeasured",
            message=evidence.sentence,
            reason=explain_reason(evidence.check, evidence.bench, evidence.verdict),
            flags=evidence.verdict.flags,
            counts=evidence.verdict.counts,
            program_id=evidence.attempt.program_id,
        )
    )


def _attempt(run: Run, program: Program) -> Attempt:
    attempt = run.state.attempt(program.program_id)
    assert attempt is not None, "it was recorded just now"
    return attempt
