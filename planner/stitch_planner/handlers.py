"""What the loop does in each state of a run: take one step, and record what it returned."""

from collections.abc import Callable, Mapping

from stitch_planner import steps
from stitch_planner.agents.model_ledger import ModelBudgetError
from stitch_planner.certify import certify_attempt
from stitch_planner.context import RunContext
from stitch_planner.policy import decide
from stitch_planner.remembering import remember
from stitch_planner.reviewing import review_attempt
from stitch_planner.runs.attempt_evidence import evidence_of
from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.recorder import (
    record_bench,
    record_build,
    record_check,
    record_end,
    record_graph,
    record_plan,
    record_program,
    record_reference,
    record_refinement,
    sources_folder,
)
from stitch_planner.runs.run import Run, started
from stitch_planner.stitcher import StitchFailedError
from stitch_tools.errors import StoreError
from stitch_tools.models.program import Program

Handlers = Mapping[str, Callable[[RunContext], None]]


def _observe(context: RunContext) -> None:
    record_reference(context.run, steps.observe(context))


def _capture(context: RunContext) -> None:
    record_graph(context.run, *steps.capture(context))


def _plan(context: RunContext) -> None:
    record_plan(context.run, steps.plan(context))


def _refine(context: RunContext) -> None:
    record_refinement(context.run, *steps.refine(context))


def _program(context: RunContext) -> None:
    """Write the next program, or take up the one that the decision names."""
    run = context.run
    decision = run.state.decision
    named = run.state.attempt(decision.program_id) if decision else None
    # The decision asks for an instrument on a program that exists, not for a new program.
    if decision is not None and named is not None and decision.decision == "next_step":
        record_program(run, run.store.get_fact(named.program.program, Program))
        return
    try:
        program, notes = context.coder.write(context)
    except (StitchFailedError, ModelBudgetError) as error:
        # What is there already counts, though it could be better.
        if run.state.best is None:
            raise
        context.workbench.say(f"no other program is written: {error.message}")
        run.record(decide(run.state, rounds_left=0))
        return
    attempt = record_program(run, program, notes=notes)
    folder = sources_folder(run.folder, attempt.round)
    context.workbench.say(f"wrote {len(program.files)} files: {folder}")


def _build(context: RunContext) -> None:
    record_build(context.run, context.program, steps.build(context))


def _check(context: RunContext) -> None:
    checked = steps.check(context)
    decided = record_check(context.run, context.program, checked)
    # Why a program is not accepted stands in the result: once is enough.
    agreed = f" ({checked.message})" if decided.accepted else ""
    context.workbench.say(f"check: {decided.status}{agreed}")


def _bench(context: RunContext) -> None:
    record_bench(context.run, context.program, steps.bench(context))


def _review(context: RunContext) -> None:
    context.run.record(review_attempt(context, context.coder.reviewer))


def _decide(context: RunContext) -> None:
    coder, state = context.coder, context.run.state
    made = decide(state, rounds_left=coder.rounds_left(state), refines=coder.refines)
    if made.decision not in ("accept", "stop"):
        context.workbench.say(f"{made.decision}: {made.reason}")
    context.run.record(made)


def _certify(context: RunContext) -> None:
    run = context.run
    run.record(certify_attempt(run, context.task, context.plan, _decided(run)))


def _finish(context: RunContext) -> None:
    run = context.run
    # Before the last event: a run that is killed in between does it again.
    remember(context)
    record_end(run, evidence_of(run.store, _decided(run), started(run.state).policy))


def _decided(run: Run) -> Attempt:
    """The attempt that the decision is about."""
    decision = run.state.decision
    attempt = run.state.attempt(decision.program_id) if decision else None
    attempt = attempt or run.state.current
    if attempt is None:
        raise StoreError("the run has no program", hint="this is a fault of ours; solve again")
    return attempt


HANDLERS: Handlers = {
    "reference": _observe,
    "graph": _capture,
    "plan": _plan,
    "refinement": _refine,
    "program": _program,
    "build": _build,
    "check": _check,
    "bench": _bench,
    "review": _review,
    "decision": _decide,
    "certificate": _certify,
    "finished": _finish,
}
"""What to do in each state of the run, by the name that `open_step` gives."""
