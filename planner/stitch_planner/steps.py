"""The steps of a run. Each looks at one thing and returns the fact; the loop records it."""

from dataclasses import replace

from stitch_planner.context import RunContext
from stitch_planner.plan import Plan
from stitch_planner.planning import make_plan
from stitch_planner.runs.run import started
from stitch_planner.stitcher import refuse_updates, stitch
from stitch_tools.graph import capture_graph
from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.memory import (
    SanitizeOptions,
    apply_sanitizers,
    sanitize_program,
    skipped_sanitizers,
)
from stitch_tools.judge.verdict import verdict_of
from stitch_tools.models.graph import Ceilings, Graph
from stitch_tools.models.program import STITCHER, Build, Program
from stitch_tools.models.task import ReferenceFacts
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.run.ceilings import measure_ceilings


def observe(context: RunContext) -> ReferenceFacts:
    """Run the reference once."""
    context.workbench.say("observing the reference")
    facts = context.reference.observe()
    for warning in facts.warnings:
        context.workbench.say(f"warning: {warning}")
    return facts


def capture(context: RunContext) -> tuple[Graph, Ceilings | None]:
    """Capture the graph, after the device was measured, unless it is not here.

    Raises:
        StitchFailedError: no program can be written, whatever the graph is.
    """
    # First what needs no work: measuring the device takes seconds, which a task without a template would
    # waste.
    refuse_updates(context.task, context.facts)
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
    return capture_graph(context.reference.child, context.task, context.facts, ceilings), ceilings


def plan(context: RunContext) -> Plan:
    """Partition the graph into steps with predicted times."""
    made = make_plan(context.graph, context.facts, context.task, context.ceilings)
    context.workbench.say(f"planned {len(made.steps)} steps")
    return made


def write_program(context: RunContext) -> tuple[Program, tuple[str, ...]]:
    """Turn the plan into source files; with what the stitcher wants a reader to know.

    Raises:
        StitchFailedError: it has no template for an operation of the graph.
    """
    store = context.run.store
    sources = {file.path: store.get(file.sha256) for file in context.task.files}
    stitched = stitch(context.task, context.facts, context.graph, context.plan, sources)
    program = Program(
        format=stitched.format,
        target=context.task.target,
        files=store.put_files(stitched.files),
        main=stitched.main,
        author=STITCHER,
    )
    return program, stitched.notes


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
    """Compare the current program with the reference."""
    context.workbench.say("checking against the reference")
    trial = context.trial
    if not context.target.available:
        # The reference was looked at on the CPU: it cannot judge there.
        trial = replace(trial, reference=None)
    checked = check_program(trial, CheckOptions(cache_dir=context.workbench.cache_dir))
    # Only of what is right so far memory errors are worth the minutes that looking for them takes.
    return _sanitized(context, checked) if verdict_of(checked).accepted else checked


def _sanitized(context: RunContext, checked: Check) -> Check:
    """The check with what the sanitizers saw; a quick run leaves them out and says so."""
    if started(context.run.state).quick:
        skipped = skipped_sanitizers(context.task.target, "the run was a quick one")
        return apply_sanitizers(checked, skipped)
    context.workbench.say("looking for memory errors and races")
    runs = sanitize_program(context.trial, SanitizeOptions(cache_dir=context.workbench.cache_dir))
    return apply_sanitizers(checked, runs)


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
    return context.workbench.benchmark(context.trial, quick=started(context.run.state).quick)
