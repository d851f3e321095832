"""The review of a run's current program: the rubric, and a model's opinion where the run asks for one."""

from collections.abc import Mapping

from stitch_planner.agents.describe_task import describe_task
from stitch_planner.context import Reviewer, RunContext
from stitch_planner.rubric import rate
from stitch_planner.runs.attempt_evidence import evidence_of
from stitch_planner.runs.reviews import Opinion, Review, ReviewSubject, RubricScore
from stitch_planner.runs.run import started
from stitch_planner.runs.run_events import ReviewFinished
from stitch_planner.search import parent_of
from stitch_planner.techniques import code_of


def review_attempt(context: RunContext, reviewer: Reviewer | None) -> ReviewFinished:
    """The review of the current program.

    Args:
        context: the run.
        reviewer: None: no model is asked.

    Raises:
        InterruptedRunError: somebody asked to stop while a model was asked.
    """
    run, attempt = context.run, context.attempt
    policy = started(run.state).policy
    code = code_of(run.store, attempt)
    parent = parent_of(run.state, attempt)
    evidence = evidence_of(run.store, attempt, policy)
    before = evidence_of(run.store, parent, policy) if parent else None
    scores = rate(evidence, before, context.plan, code.values())
    opinions: tuple[Opinion, ...] = ()
    note = ""
    # A program that does not count was judged by stronger means than an opinion.
    if reviewer is not None and attempt.counts:
        context.workbench.say("asking for a review")
        opinions, note = reviewer.opinions(_subject(context, scores, code))
    review = Review(scores=scores, opinions=opinions, note=note)
    return ReviewFinished(program_id=attempt.program_id, result=review)


def _subject(context: RunContext, scores: tuple[RubricScore, ...], code: Mapping[str, str]) -> ReviewSubject:
    return ReviewSubject(
        task=describe_task(context, context.plan),
        summary=" ".join(context.attempt.program.notes),
        scores=scores,
        code="\n\n".join(f"// {path}\n{text}" for path, text in code.items()),
    )
