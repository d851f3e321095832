"""`solve`: from a reference to a certificate, a state machine over a run's decisions.

Each step looks at one thing; what it returns is stored and recorded as one event, which leads to the next
step. A step whose event is there already is not repeated, so that a run killed at any moment continues with
the step that was in flight. Whatever else ends a run early is recorded as an event, too; resuming tries the
open step again.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from stitch_planner.budget import Budget, resume_remedy
from stitch_planner.coders import coder_of, planner_of
from stitch_planner.context import RunContext
from stitch_planner.handlers import HANDLERS, Handlers
from stitch_planner.llm.chat import ModelBusyError, ModelError
from stitch_planner.memory_file import MemoryFile
from stitch_planner.opening import OnEvent, SolveRequest, open_run
from stitch_planner.policy import open_step
from stitch_planner.runs.attempt_evidence import evidence_of
from stitch_planner.runs.model_calls import spent_tokens, spent_usd
from stitch_planner.runs.recorder import record_resumption, record_stop, sources_folder
from stitch_planner.runs.run import LostStep, Run, Workspace, lost_step, started
from stitch_planner.runs.state import State
from stitch_planner.workbench import Workbench
from stitch_tools.errors import BudgetError, EnvironmentMissingError, RunInterrupt, StitchError, StoreError
from stitch_tools.judge.memory_holders import naming_holders
from stitch_tools.models.acceptance import AcceptPolicy, Verdict
from stitch_tools.models.base import Fact
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Bench, Check

Emit = Callable[[str], None]
_MENDABLE = (EnvironmentMissingError, StoreError, ModelError, ModelBusyError, BudgetError)
"""What stops a run that can go on once its cause is mended."""


class SolveResult(Fact):
    """The end of a run, flat enough for a script."""

    run_id: str
    run_folder: str
    """Absolute path."""
    task: str
    """Name of the task."""
    target: str
    status: str
    """CheckStatus of the best program."""
    outcome: str
    """BenchOutcome against eager."""
    program_id: str | None
    """The best program; where none counts, the one that was worked on last."""
    certificate: str | None
    """Absolute path of the archive, None where no program counts."""
    sources: str | None = None
    """Absolute path of the folder with the program's sources, None where none were written."""
    library: str | None = None
    """Absolute path of the built library; None where none was built, or the program builds itself."""
    speedup: float | None
    """Median of eager time / program time."""
    min_speedup: float | None
    message: str
    """One sentence that explains status and outcome."""
    warnings: tuple[str, ...] = ()
    """Doubts about the reference, with their evidence."""
    notes: tuple[str, ...] = ()
    """What the coder wants a reader to know: eager nodes, layout choices."""
    check: Check | None = None
    bench: Bench | None = None
    verdict: Verdict | None = None
    """What check and timing amount to under the run's policy; None where nothing was checked."""
    attempts: int = 0
    """How many programs the run met."""
    model_tokens: int | None = None
    """Tokens that the run's model took, at most; None where none was asked."""
    model_usd: float | None = None
    """Dollars that it cost, at most; None where none was asked, or its price is not known."""


def solve(
    request: SolveRequest,
    *,
    emit: Emit | None = None,
    stop: threading.Event | None = None,
    on_event: OnEvent = None,
    on_state: Callable[[State], None] | None = None,
    handlers: Handlers = HANDLERS,
) -> SolveResult:
    """The result of solving `request`, after as many steps as were still open.

    Args:
        request: what to solve.
        emit: receives one sentence per step.
        stop: when set, the loop ends after the step in flight; one that waits for the device, or times on it,
            is given up.
        on_event: sees each event once it is durable.
        on_state: sees the state before each step.
        handlers: what to do by name of the open step.

    Raises:
        InterruptedRunError: `stop` was set; its remedy resumes the run.
        BudgetError: the time limit was reached before a program was timed; its remedy resumes the run.
        RunInterrupt: a KeyboardInterrupt came from outside; its remedy resumes the run.
        TaskError: the reference cannot be used.
        StitchError: something that this machine needs is missing, or a failure of ours.
    """
    end_s = float("inf") if request.time_limit_s is None else time.monotonic() + request.time_limit_s
    budget = Budget(stop or threading.Event(), end_s)
    opened = open_run(request, _workbench(request, emit, budget), on_event)
    run, workbench = opened.run, opened.workbench
    try:
        # Only a resumed run can lack what its events name; a new one has just written it.
        lost = lost_step(run) if request.resume else None
        if run.state.finished is None or lost is not None:
            if request.resume:
                _resume(run, workbench.say, lost)
            coder = coder_of(run, workbench, request.models, request.limits, budget)
            planner = planner_of(run, coder)
            memory = MemoryFile(request.memory) if request.memory and started(run.state).memory else None
            with (
                naming_holders(opened.task.target),
                RunContext(
                    run, opened.task, opened.target, workbench, coder, planner=planner, memory=memory
                ) as context,
            ):
                advance(context, budget, handlers, on_state)
        return _result(run, opened.task)
    # KeyboardInterrupt and SystemExit included: `runs show` has to tell an interrupted run from a killed one.
    except BaseException as error:  # handed on: the log has to say how the run ended
        _record_stop(run, error)
        if isinstance(error, KeyboardInterrupt):
            raise RunInterrupt(*error.args, remedies=(resume_remedy(run.run_id),)) from error
        raise
    finally:
        run.close()


def _resume(run: Run, emit: Emit, lost: LostStep | None) -> None:
    if lost is not None:
        emit(f"what the step '{lost.name}' had found is missing or damaged: done again from there")
    record_resumption(run, lost)


def _workbench(request: SolveRequest, emit: Emit | None, budget: Budget) -> Workbench:
    workspace = Workspace(request.workspace)
    workspace.prepare()
    # `stop` also ends waiting for a device lock, which can take as long as another process's timing.
    return Workbench(
        workspace=workspace,
        python=request.python,
        threads=request.threads,
        require_sandbox=request.require_sandbox,
        cache_dir=request.cache_dir,
        build_time_limit_s=request.build_time_limit_s,
        bench_budget_s=request.bench_budget_s,
        compile_baselines=request.compile_baselines,
        policy=request.policy or AcceptPolicy(),
        emit=emit,
        deadline_s=None if request.time_limit_s is None else budget.end_s,
        stop=budget.stop,
    )


def advance(
    context: RunContext,
    budget: Budget,
    handlers: Handlers,
    on_state: Callable[[State], None] | None = None,
) -> None:
    """Take the run from its open step to its end, as far as the budget lasts; as `solve` says.

    Raises:
        InterruptedRunError: as `solve` says.
        BudgetError: as `solve` says.
        StitchError: a step failed.
    """
    run = context.run
    while (name := open_step(run.state)) is not None:
        budget.check(run)
        if on_state is not None:
            on_state(run.state)
        try:
            handlers[name](context)
        except StitchError as error:
            # Ctrl-C reaches the whole process group; a child that is just being started may die of it.
            if budget.stop.is_set():
                budget.check(run)
            if isinstance(error, _MENDABLE):
                error.remedies = (*error.remedies, resume_remedy(run.run_id))
            raise


def _record_stop(run: Run, error: BaseException) -> None:
    """Leave in the log why the run ends here. A log that cannot be written leaves the run open."""
    if run.state.finished is not None:
        return
    with contextlib.suppress(StoreError):
        record_stop(run, open_step(run.state) or "finished", error)


def _result(run: Run, task: Task) -> SolveResult:
    state = run.state
    finished, attempt = state.finished, state.result
    if finished is None or attempt is None:
        raise StoreError("the run ended without its last event", hint="solve again; this is a fault of ours")
    evidence = evidence_of(run.store, attempt, started(state).policy)
    sources = sources_folder(run.folder, attempt.round)
    eager = evidence.bench.ratio("eager") if evidence.bench else None
    return SolveResult(
        run_id=run.run_id,
        run_folder=str(run.folder.resolve()),
        task=task.name,
        target=task.target,
        status=finished.status,
        outcome=finished.outcome,
        program_id=attempt.program_id,
        certificate=str((run.folder / state.certificate.file).resolve()) if state.certificate else None,
        sources=str(sources.resolve()) if sources.is_dir() else None,
        library=evidence.build.artifact if evidence.build else None,
        speedup=eager.speedup if eager else None,
        min_speedup=started(state).min_speedup,
        message=finished.message,
        warnings=state.reference.warnings if state.reference else (),
        notes=attempt.program.notes,
        check=evidence.check,
        bench=evidence.bench,
        verdict=evidence.verdict,
        attempts=len(state.attempts),
        model_tokens=spent_tokens(state.calls) if state.calls else None,
        model_usd=spent_usd(state.calls) if state.calls else None,
    )
