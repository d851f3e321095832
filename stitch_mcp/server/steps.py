"""What the tools' functions share: the run that a step belongs to."""

import contextlib
from collections.abc import Generator

from stitch_mcp.api import Captured
from stitch_mcp.server.job_work import Work
from stitch_planner.join import OUTSIDE, joined, take_usable
from stitch_planner.plan import Plan, try_plan
from stitch_planner.runs.run import Run, read_state, started
from stitch_planner.runs.run_events import GraphCaptured, PlanMade, ReferenceObserved, RunStopped
from stitch_tools.errors import StitchError, StoreError, UsageError
from stitch_tools.models import Ceilings, Graph, ReferenceFacts, Task


@contextlib.contextmanager
def open_run(work: Work, task: Task) -> Generator[Run]:
    """The run that the job began before it was interrupted, else a new one; a failure is left in its log."""
    from stitch_planner.loop import begin_run

    config = work.workbench.config
    with contextlib.ExitStack() as stack:
        if work.subject.run_id:
            run = stack.enter_context(joined(work.workbench.workspace, work.subject.run_id))
        else:
            run = begin_run(
                work.workbench.workspace,
                task,
                work.workbench.interpreter,
                coder=OUTSIDE,
                min_speedup=config.min_speedup,
                threads=config.threads,
                require_sandbox=config.require_sandbox,
            )
            stack.callback(run.close)
        work.joined(run.run_id)
        try:
            yield run
        except StitchError as error:
            run.record(
                RunStopped(
                    step="reference", code=error.code, message=error.message[:2000], hint=error.hint[:2000]
                )
            )
            raise


def captured_facts(run: Run) -> Captured:
    """What the run recorded of its reference.

    Raises:
        UsageError: it was not analyzed to the end.
    """
    state, store = run.state, run.store
    if state.reference is None or state.graph is None:
        raise UsageError(
            f"run {run.run_id} has no captured graph",
            hint="call analyze_reference, or solve with this run_id",
        )
    ceilings = state.graph.ceilings
    return Captured(
        task=store.get_fact(started(state).task, Task),
        facts=store.get_fact(state.reference.facts, ReferenceFacts),
        graph=store.get_fact(state.graph.graph, Graph),
        ceilings=store.get_fact(ceilings, Ceilings) if ceilings else None,
    )


def known_facts(work: Work) -> ReferenceFacts | None:
    """What the request's run observed of its reference; None without a run, or where that is lost."""
    if not work.subject.run_id:
        return None
    workspace = work.workbench.workspace
    observed = read_state(workspace.run_folder(work.subject.run_id)).reference
    with contextlib.suppress(StoreError):
        return workspace.store.get_fact(observed.facts, ReferenceFacts) if observed else None
    return None


def stored_plan(run: Run, task: Task, captured: Captured) -> tuple[Plan, str]:
    """The run's plan, made and recorded where it has none, and its hash."""
    if run.state.plan is not None:
        return run.store.get_fact(run.state.plan.plan, Plan), run.state.plan.plan
    made = try_plan(captured.graph, captured.facts, task, captured.ceilings)
    hashed = run.store.put_fact(made)
    run.record(PlanMade(plan=hashed, steps=len(made.steps)))
    return made, hashed


def hand_over(work: Work, *, quick: bool, min_speedup: float | None) -> str:
    """Id of the run that `solve` goes on with: a new one, or one whose rejected program is replaced.

    Raises:
        UsageError: a run that exists keeps what it was begun with.
    """
    from stitch_planner.loop import begin_run

    config = work.workbench.config
    if not work.subject.run_id:
        run = begin_run(
            work.workbench.workspace,
            work.task,
            work.workbench.interpreter,
            coder="stitcher",
            quick=quick,
            min_speedup=config.min_speedup if min_speedup is None else min_speedup,
            threads=config.threads,
            require_sandbox=config.require_sandbox,
        )
        run.close()
        work.joined(run.run_id)
        return run.run_id
    with joined(work.workbench.workspace, work.run_id) as run:
        first = started(run.state)
        if (quick and not first.quick) or (min_speedup is not None and min_speedup != first.min_speedup):
            raise UsageError("a run keeps its `quick` and `min_speedup`", hint="leave them out")
        take_usable(run, work.task, work.workbench.interpreter, work.say)
    return work.run_id


def record_capture(run: Run, captured: Captured) -> dict[str, str]:
    """Hashes of what was captured, after it was recorded in the run."""
    store = run.store
    facts = store.put_fact(captured.facts)
    graph = store.put_fact(captured.graph)
    ceilings = store.put_fact(captured.ceilings) if captured.ceilings else None
    run.record(ReferenceObserved(facts=facts, warnings=captured.facts.warnings))
    run.record(GraphCaptured(graph=graph, ceilings=ceilings, source=captured.graph.source))
    return {"facts": facts, "graph": graph}
