"""What the tools' functions share: the run that a step belongs to."""

import contextlib
from collections.abc import Generator
from typing import TypeVar

from stitch_mcp.api import Captured
from stitch_mcp.server.coders import AllowedCoder
from stitch_mcp.server.job_context import JobContext
from stitch_planner.budget import resume_remedy
from stitch_planner.join import joined, reopen
from stitch_planner.plan import Plan
from stitch_planner.planning import try_plan
from stitch_planner.runs.recorder import OUTSIDE, record_graph, record_plan, record_reference, record_stop
from stitch_planner.runs.run import Run, lost_step, read_state, started
from stitch_planner.runs.state import State
from stitch_tools.errors import StitchError, StoreError, UsageError
from stitch_tools.models.base import Fact
from stitch_tools.models.graph import Ceilings, Graph
from stitch_tools.models.remedy import Remedy
from stitch_tools.models.task import ReferenceFacts, Task

FactT = TypeVar("FactT", bound=Fact)


@contextlib.contextmanager
def open_run(work: JobContext, task: Task) -> Generator[Run]:
    """The run that the job began before it was interrupted, else a new one; a failure is left in its log."""
    from stitch_planner.opening import begin_run

    # Both ways to get a run end in one place, so that a failure is recorded in either.
    with contextlib.ExitStack() as stack:
        if work.subject.run_id:
            run = stack.enter_context(joined(work.workbench.workspace, work.subject.run_id))
        else:
            run = begin_run(work.workbench, task, coder=OUTSIDE, min_speedup=work.config.min_speedup)
            stack.callback(run.close)
        work.joined(run.run_id)
        try:
            yield run
        except StitchError as error:
            record_stop(run, "reference", error)
            raise


def captured_facts(run: Run) -> Captured:
    """What the run recorded of its reference.

    Raises:
        UsageError: it was not analyzed to the end.
    """
    state, store = run.state, run.store
    if state.reference is None or state.graph is None:
        task_id = started(state).task_id[:16]
        analyze = Remedy(
            tool="analyze_reference", arguments={"reference": task_id}, why="analyze it in another run"
        )
        raise UsageError(
            f"run {run.run_id} has no captured graph", remedies=(resume_remedy(run.run_id), analyze)
        )
    ceilings = state.graph.ceilings
    return Captured(
        task=store.get_fact(started(state).task, Task),
        facts=store.get_fact(state.reference.facts, ReferenceFacts),
        graph=store.get_fact(state.graph.graph, Graph),
        ceilings=store.get_fact(ceilings, Ceilings) if ceilings else None,
    )


def known_facts(work: JobContext) -> ReferenceFacts | None:
    """What the request's run observed of its reference; None without a run, or where that is lost."""
    state = _state_of(work)
    observed = state.reference if state else None
    return _kept(work, observed.facts, ReferenceFacts) if observed else None


def known_graph(work: JobContext) -> Graph | None:
    """The graph that the request's run captured; None without a run, or where that is lost."""
    state = _state_of(work)
    captured = state.graph if state else None
    return _kept(work, captured.graph, Graph) if captured else None


def _state_of(work: JobContext) -> State | None:
    run_id = work.subject.run_id
    return read_state(work.workbench.workspace.run_folder(run_id)) if run_id else None


def _kept(work: JobContext, content: str, kind: type[FactT]) -> FactT | None:
    with contextlib.suppress(StoreError):
        return work.workbench.workspace.store.get_fact(content, kind)
    return None


def stored_plan(run: Run, task: Task, captured: Captured) -> tuple[Plan, str]:
    """The run's plan, made and recorded where it has none, and its hash."""
    if run.state.plan is not None:
        return run.store.get_fact(run.state.plan.plan, Plan), run.state.plan.plan
    made = try_plan(captured.graph, captured.facts, task, captured.ceilings)
    return made, record_plan(run, made)


def hand_over(work: JobContext, *, quick: bool, min_speedup: float | None, coder: AllowedCoder) -> str:
    """Id of the run that `solve` resumes: a new one, or one that was started step by step.

    Raises:
        UsageError: a run that exists keeps what it was started with.
    """
    from stitch_planner.opening import begin_run

    goal = work.config.min_speedup if min_speedup is None else min_speedup
    if not work.subject.run_id:
        run = begin_run(
            work.workbench,
            work.task,
            coder=coder.coder,
            model=coder.model,
            rounds=coder.rounds,
            quick=quick,
            min_speedup=goal,
        )
        run.close()
        work.joined(run.run_id)
        return run.run_id
    with joined(work.workbench.workspace, work.run_id) as run:
        first = started(run.state)
        if (quick and not first.quick) or (min_speedup is not None and min_speedup != first.min_speedup):
            raise UsageError("a run keeps its `quick` and `min_speedup`", hint="leave them out")
        if lost_step(run) is None and reopen(run):
            work.say("the run was finished without a program of the stitcher: it writes one now")
    return work.run_id


def record_capture(run: Run, captured: Captured) -> str:
    """The hash of the captured graph, after all was recorded in the run."""
    record_reference(run, captured.facts)
    return record_graph(run, captured.graph, captured.ceilings)
