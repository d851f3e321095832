"""The steps of a run. Each looks at one thing and returns the fact; the loop records it."""

from dataclasses import replace

from stitch_planner.context import Refinement, RunContext
from stitch_planner.plan import Plan
from stitch_planner.planning import make_plan
from stitch_planner.runs.run import started
from stitch_tools.graph import capture_graph
from stitch_tools.judge.gpu_health import canary_for
from stitch_tools.judge.memory_holders import refuse_held_memory
from stitch_tools.models.graph import Ceilings, Graph
from stitch_tools.models.program import Build
from stitch_tools.models.task import ReferenceFacts
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.run.ceilings import measure_ceilings


def observe(context: RunContext) -> ReferenceFacts:
    """Run the reference once."""
    context.workbench.say("observing the reference")
    # Its answer is waited for before the program first runs.
    if (canary := canary_for(context.session, context.task.target)) is not None:
        canary.begin()
    facts = context.reference.observe()
    for warning in facts.warnings:
        context.workbench.say(f"warning: {warning}")
    return facts


def capture(context: RunContext) -> tuple[Graph, Ceilings | None]:
    """Capture the graph, after the device was measured, unless it is not here."""
    ceilings = None
    if context.target.available:
        ceilings = measure_ceilings(
            context.task.target,
            cache_dir=context.workbench.cache_dir,
            session=context.session,
            emit=context.workbench.emit,
            stop=context.workbench.stop,
        )
    context.workbench.say("capturing the graph")
    graph = capture_graph(context.reference.child, context.task, context.facts, ceilings)
    # A graph that could not be compared for want of memory is opaque: no program comes of it.
    refuse_held_memory(context.reference, graph.reason)
    return graph, ceilings


def plan(context: RunContext) -> Plan:
    """Partition the graph into steps with predicted times."""
    made = make_plan(context.graph, context.facts, context.task, context.ceilings)
    context.workbench.say(f"planned {len(made.steps)} steps")
    return made


def refine(context: RunContext) -> Refinement:
    """Ask the model for a better plan. Without one the run continues with the plan that it has."""
    if context.planner is None:
        return Refinement("", None, "this run has no model that could be asked")
    refined = context.planner.refine(context)
    if refined.plan is None:
        context.workbench.say(f"the plan is not refined: {refined.problem}")
    else:
        context.workbench.say(f"{refined.author} refined the plan: {len(refined.plan.steps)} steps")
    return refined


def build(context: RunContext) -> Build | None:
    """Compile the current program; None for one in Python, which builds itself when it is loaded."""
    if context.program.format != "native":
        return None
    context.workbench.say("compiling")
    built = context.workbench.build(context.program)
    if not built.ok:
        for line in built.diagnostics[:5]:
            context.workbench.say(f"{line.file}:{line.line}: {line.severity}: {line.message}")
    return built


def check(context: RunContext) -> Check:
    """Compare the current program with the reference; a quick run looks for no memory errors."""
    context.workbench.say("checking against the reference")
    quick = started(context.run.state).quick
    return context.workbench.check(context.trial, sanitize=not quick, sanitize_wrong=False)


def bench(context: RunContext) -> Bench:
    """Time the current program beside its baselines, if it is correct."""
    attempt = context.attempt
    # A time without correct outputs means nothing, so no device time is spent on it.
    if not attempt.accepted:
        return Bench(
            program_id=attempt.program_id,
            task_id=context.task.task_id,
            outcome="unmeasured",
            message=f"only correct programs are timed; this one is {attempt.status}",
        )
    context.workbench.say("timing beside eager and torch.compile")
    # Alone of all steps this one has a length that can be chosen; a check that was cut off would stay so.
    trial = replace(context.trial, deadline_s=context.workbench.deadline_s)
    return context.workbench.benchmark(trial, quick=started(context.run.state).quick)
