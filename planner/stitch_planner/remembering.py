"""Makes lessons of a finished run, and finds those that fit a new task."""

from collections.abc import Sequence
from typing import NamedTuple

from stitch_planner.context import RunContext
from stitch_planner.plan import Plan
from stitch_planner.runs.attempt_evidence import evidence_of
from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.lessons import Lesson
from stitch_planner.runs.run import OUTSIDE, Run, started
from stitch_planner.search import parent_of
from stitch_planner.techniques import code_of, used_techniques
from stitch_tools.errors import StitchError
from stitch_tools.models.program import STITCHER

_MOST_RECALLED, _MOST_OF_A_RUN = 5, 4
_COSTLY_SHARE = 0.8
"""The costliest steps with this share of the predicted time say what kind of task it is."""
_LEAST_LIKENESS = 0.5
_LEAST_GAIN = 1.1


class TaskKind(NamedTuple):
    """What tasks have in common for which the same helps."""

    target: str
    ops: frozenset[str]
    bound: str


def kind_of_task(plan: Plan) -> TaskKind:
    """The kind of a plan's task, by its costliest steps."""
    steps = sorted(plan.steps, key=lambda step: -(step.predicted_us or 0.0))
    total = sum(step.predicted_us or 0.0 for step in steps)
    ops: set[str] = set()
    spent = 0.0
    for step in steps:
        ops.update(step.ops)
        spent += step.predicted_us or 0.0
        if total > 0 and spent >= _COSTLY_SHARE * total:
            break
    return TaskKind(plan.target.partition(":")[0], frozenset(ops), (steps[0].bound or "") if steps else "")


def recall(lessons: Sequence[Lesson], kind: TaskKind) -> tuple[Lesson, ...]:
    """The lessons that fit a kind of task: the most alike first, of those the newest."""
    scored = [(_likeness(row, kind), place, row) for place, row in enumerate(lessons)]
    fitting = sorted((row for row in scored if row[0] >= _LEAST_LIKENESS), key=lambda row: (-row[0], -row[1]))
    return tuple(row for _, _, row in fitting[:_MOST_RECALLED])


def _likeness(lesson: Lesson, kind: TaskKind) -> float:
    """The operations in common over all of both; a little less for another bound."""
    ops = frozenset(lesson.ops)
    if lesson.target != kind.target or not ops | kind.ops:
        return 0.0
    common = len(ops & kind.ops) / len(ops | kind.ops)
    return common if lesson.bound == kind.bound else 0.9 * common


def recalled(context: RunContext) -> tuple[Lesson, ...]:
    """The lessons that fit the run's task; none where memory cannot be read."""
    if context.memory is None:
        return ()
    try:
        known = context.memory.lessons()
    except StitchError as error:
        context.workbench.say(f"no lessons of earlier runs: {error.message}")
        return ()
    return recall([row for row in known if row.run_id != context.run.run_id], kind_of_task(context.plan))


def remember(context: RunContext) -> None:
    """Keep the run's lessons; a memory that cannot be written stops nothing."""
    if context.memory is None or not (lessons := lessons_of(context.run, context.plan)):
        return
    try:
        context.memory.remember(context.run.run_id, lessons)
    except StitchError as error:
        context.workbench.say(f"the lessons of this run are not kept: {error.message}")


def lessons_of(run: Run, plan: Plan) -> tuple[Lesson, ...]:
    """The lessons of a run: its largest gains first, then what was wrong."""
    kind = kind_of_task(plan)
    rows = [row for row in run.state.attempts if row.author not in (STITCHER, OUTSIDE, "") and not row.lost]
    lessons = [_lesson(run, row, kind) for row in rows]
    lessons.sort(key=lambda row: (row.outcome == "rejected", -(row.gain or 0.0)))
    return tuple(lessons[:_MOST_OF_A_RUN])


def _lesson(run: Run, attempt: Attempt, kind: TaskKind) -> Lesson:
    parent = parent_of(run.state, attempt)
    used = used_techniques(code_of(run.store, attempt).values())
    before = used_techniques(code_of(run.store, parent).values()) if parent else frozenset[str]()
    gain = _gain(attempt, parent)
    problem = ""
    if not attempt.counts:
        evidence = evidence_of(run.store, attempt, started(run.state).policy)
        rules = [row.rule for row in evidence.verdict.reasons] if evidence.verdict else []
        problem = ", ".join(dict.fromkeys((attempt.status, *rules)))
    is_gain = gain is not None and gain >= _LEAST_GAIN
    return Lesson(
        run_id=run.run_id,
        number=attempt.round,
        target=kind.target,
        ops=tuple(sorted(kind.ops)),
        bound=kind.bound,
        techniques=tuple(sorted(used - before)),
        outcome="rejected" if not attempt.counts else "gain" if is_gain else "no_gain",
        gain=None if not attempt.counts or gain is None else round(gain, 2),
        problem=problem,
    )


def _gain(attempt: Attempt, parent: Attempt | None) -> float | None:
    """Speed over a parent that counts, else over eager."""
    own = attempt.bench
    if parent is None or not parent.counts or parent.bench is None:
        return (own.safe_speedup or own.cpu_speedup) if own else None
    return attempt.gain_over(parent)
