"""Profiles a task's reference with all that is known of it: its graph, and the limits of the device."""

from dataclasses import replace

from stitch_planner.profiles import keep_profile
from stitch_planner.workbench import Workbench
from stitch_tools.errors import StitchError
from stitch_tools.graph import capture_graph
from stitch_tools.machine.devices import resolve_target
from stitch_tools.models.graph import Graph
from stitch_tools.models.profile import Profile
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.profile.profile_work import KnownFacts, ProfileOptions
from stitch_tools.profile.profiling import profile_reference
from stitch_tools.run.ceilings import measure_ceilings
from stitch_tools.run.session import TargetSession


def profile_task(
    workbench: Workbench,
    session: TargetSession,
    task: Task,
    *,
    options: ProfileOptions,
    known: KnownFacts | None = None,
) -> Profile:
    """The profile of a task's reference with its graph and the device's limits, kept in the workspace.

    Raises:
        TaskError: the reference cannot be used.
    """
    facts = known or known_facts(workbench, session, task)
    profile = profile_reference(
        session, task, workbench.workspace.store, options=options, known=facts, emit=workbench.emit
    )
    keep_profile(workbench.workspace, profile)
    return profile


def known_facts(
    workbench: Workbench,
    session: TargetSession,
    task: Task,
    graph: Graph | None = None,
    facts: ReferenceFacts | None = None,
) -> KnownFacts:
    """Graph and ceilings, as far as they can be had; what is missing makes the diagnosis say less.

    Raises:
        TaskError: the reference cannot be used.
    """
    known = KnownFacts(graph=graph)
    if resolve_target(task.target).available:
        try:
            ceilings = measure_ceilings(
                task.target, session=session, cache_dir=workbench.cache_dir, emit=workbench.emit
            )
            known = replace(known, ceilings=ceilings)
        except StitchError as error:
            workbench.say(f"the device's limits are not known: {error.message}")
    if graph is None:
        with workbench.observed(session, task, facts) as (server, observed):
            workbench.say("capturing the graph")
            try:
                graph = capture_graph(server.child, task, observed, known.ceilings)
            except StitchError as error:
                workbench.say(f"the graph could not be captured: {error.message}")
    return replace(known, graph=graph)
