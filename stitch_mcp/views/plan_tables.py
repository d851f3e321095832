"""A plan that a model refined, as a table."""

from stitch_mcp.views.fact_tables import microseconds
from stitch_mcp.views.table import ReportSection
from stitch_planner.plan import Plan, PlanStep
from stitch_planner.runs.run_events import PlanRefined


def refinement_section(refined: PlanRefined, plan: Plan | None) -> ReportSection:
    """The plan with goals, means and times; or why there is none.

    Args:
        refined: the run's event.
        plan: the fact that it names; None where there is none, or it cannot be read.
    """
    title = f"plan refined by {refined.author or 'nobody'}"
    if plan is None:
        missing = refined.problem or "the refined plan is missing or damaged"
        return ReportSection(title, notes=(f"the deterministic plan stands: {missing}",))
    columns = ("step", "operations", "by", "expected us", "at least us", "goal", "done when, risks")
    rows = tuple(_row(step) for step in plan.steps)
    total = "" if plan.predicted_us is None else f", expected {microseconds(plan.predicted_us)} us in all"
    notes = [f"{len(plan.steps)} steps for {plan.target}{total}; expected times are the model's guesses"]
    notes += [plan.strategy] if plan.strategy else []
    notes += [f"host: {plan.host.summary}"] if plan.host and plan.host.summary else []
    notes += [f"risk: {risk}" for risk in plan.risks]
    return ReportSection(title, columns, rows, tuple(notes))


def _row(step: PlanStep) -> tuple[str, ...]:
    tests = [step.acceptance] if step.acceptance else []
    return (
        str(step.index),
        " + ".join(step.ops),
        step.library or "-",
        microseconds(step.predicted_us),
        microseconds(step.lower_bound_us),
        step.goal,
        "; ".join((*tests, *(f"risk: {risk}" for risk in step.risks))) or "-",
    )
