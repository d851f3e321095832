"""`solve`: from a reference to a certificate, one ordered list of steps over a run's state.

Each step does one thing, stores what it found and records one event. A step whose event is there already is
not repeated, so a run killed at any moment goes on with the step that was in flight. Whatever else ends a run
early is recorded as an event, too; resuming tries the open step again.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stitch_planner.join import OUTSIDE, take_usable
from stitch_planner.runs.run import Run, Workspace, lost_step, started
from stitch_planner.runs.run_events import RunFinished, RunResumed, RunStarted, RunStopped, kind_of
from stitch_planner.steps import SOURCES_FOLDER, STEPS, Work
from stitch_tools.errors import (
    BudgetError,
    EnvironmentMissingError,
    InterruptedRunError,
    StitchError,
    StoreError,
    UsageError,
)
from stitch_tools.machine.devices import Target, resolve_target
from stitch_tools.models import Bench, Build, Check, Environment, Fact, SandboxLevel, Task
from stitch_tools.run.environment_facts import describe_environment
from stitch_tools.run.interpreter import Interpreter, find_interpreter
from stitch_tools.storage.events import Event
from stitch_tools.task.references import load_task

_RESUMED = kind_of(RunResumed(step=""))
Emit = Callable[[str], None]
OnEvent = Callable[[Event], None] | None


def _silent(message: str) -> None:
    del message


def _resume_command(run_id: str) -> str:
    return f"stitch-mcp solve --resume {run_id}"


@dataclass(frozen=True)
class SolveRequest:
    """What to solve, and how. Either `reference` or `resume` is given.

    A resumed run keeps `target`, `min_speedup`, `threads` and `require_sandbox`: None, or what it began with.
    """

    workspace: Path
    reference: str | None = None
    """A KernelBench-style file, `path.py:Object`, or a task.toml."""
    resume: str | None = None
    """Run id (or its unique beginning, or "last") to go on with."""
    target: str | None = None
    """Device to build for; None: cpu, or that of the run which is resumed."""
    overrides: Mapping[str, object] = field(default_factory=dict[str, object])
    """Fields of the contract that the caller sets."""
    allow_relaxed: bool = False
    """Whether `overrides` may loosen the contract, which marks every result."""
    python: str | None = None
    """Target interpreter; None: found as `find_interpreter` says."""
    quick: bool = False
    min_speedup: float | None = None
    require_sandbox: SandboxLevel | None = None
    threads: int | None = None
    cache_dir: Path | None = None
    time_limit_s: float | None = None
    """Time after which no further step is begun; None: no limit."""
    build_time_limit_s: float = 600.0
    inputs: str | None = None
    """Name of the input maker; None: the task file's, else get_inputs."""
    resume_command: Callable[[str], str] = _resume_command
    """The command that goes on with a run, by its id, as the caller's program is called."""


class SolveResult(Fact):
    """The end of a run, flat enough for a script."""

    run_id: str
    run_folder: str
    """Absolute path."""
    task: str
    """Name of the task."""
    target: str
    status: str
    """CheckStatus of the program."""
    outcome: str
    """BenchOutcome against eager."""
    program_id: str | None
    certificate: str | None
    """Absolute path of the archive, None where nothing was accepted."""
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


def solve(
    request: SolveRequest,
    *,
    emit: Emit | None = None,
    stop: threading.Event | None = None,
    on_event: OnEvent = None,
) -> SolveResult:
    """The result of solving `request`, after as many steps as were still open.

    Args:
        request: what to solve.
        emit: receives one sentence per step.
        stop: when set, the loop ends after the step in flight; one that waits for the device, or times on it,
            is given up.
        on_event: sees each event once it is durable.

    Raises:
        InterruptedRunError: `stop` was set; the hint says how to resume.
        BudgetError: the time limit was reached; the hint says how to resume.
        KeyboardInterrupt: it came from outside; a note on it says how to resume.
        TaskError: the reference cannot be used.
        StitchError: something that this machine needs is missing, or a failure of ours.
    """
    end_s = float("inf") if request.time_limit_s is None else time.monotonic() + request.time_limit_s
    workspace = Workspace(request.workspace)
    workspace.prepare()
    begin = _resume if request.resume else _begin
    opened = begin(request, workspace, on_event)
    try:
        lost = lost_step(opened.run) if request.resume else None
        if request.resume and lost is None:
            _replace_rejected(opened, emit or _silent)
        if opened.run.state.finished is None or lost is not None:
            budget = _Budget(stop or threading.Event(), end_s, request)
            _advance(opened, request, emit or _silent, budget, lost)
        return _result(opened.run, opened.task)
    except BaseException as error:  # handed on: the log has to say how the run ended
        if isinstance(error, KeyboardInterrupt):
            error.add_note(_how_to_go_on(opened.run, request))
        _record_stop(opened.run, error)
        raise
    finally:
        opened.run.close()


@dataclass(frozen=True)
class _Opened:
    """A run that is new or taken up again, with what its steps need."""

    run: Run
    task: Task
    target: Target
    interpreter: Interpreter


def _begin(request: SolveRequest, workspace: Workspace, on_event: OnEvent) -> _Opened:
    if request.reference is None:
        raise UsageError("nothing to solve", hint="name a reference file, or a run with --resume")
    target = resolve_target(request.target or "cpu")
    task = load_task(
        request.reference,
        workspace=Path.cwd(),
        store=workspace.store,
        target=target.name,
        overrides=request.overrides,
        allow_relaxed=request.allow_relaxed,
        inputs=request.inputs,
    )
    interpreter = find_interpreter(request.python, workspace.root)
    run = begin_run(
        workspace,
        task,
        interpreter,
        coder="stitcher",
        quick=request.quick,
        min_speedup=request.min_speedup,
        threads=request.threads,
        require_sandbox=request.require_sandbox,
        on_event=on_event,
    )
    return _Opened(run, task, target, interpreter)


def begin_run(
    workspace: Workspace,
    task: Task,
    interpreter: Interpreter,
    *,
    coder: str,
    quick: bool = False,
    min_speedup: float | None = None,
    threads: int | None = None,
    require_sandbox: SandboxLevel | None = None,
    on_event: OnEvent = None,
) -> Run:
    """A new run with its first event, open for writing.

    Raises:
        StoreError: it cannot be written.
    """
    first = RunStarted(
        task=workspace.store.put_fact(task),
        task_id=task.task_id,
        coder=coder,
        quick=quick,
        min_speedup=min_speedup,
        threads=threads,
        require_sandbox=require_sandbox,
        interpreter=str(interpreter.path),
        environment=workspace.store.put_fact(describe_environment(interpreter, resolve_target(task.target))),
    )
    run = Run(workspace.new_run_folder(task), workspace.store, on_event=on_event)
    try:
        run.record(first)
    except BaseException:  # handed on: the lock must not outlive the attempt
        run.close()
        raise
    return run


def _resume(request: SolveRequest, workspace: Workspace, on_event: OnEvent) -> _Opened:
    if request.reference is not None:
        raise UsageError(
            "a resumed run has its reference already", hint="give a reference or --resume, not both"
        )
    run = Run(workspace.run_folder(request.resume or ""), workspace.store, on_event=on_event)
    try:
        first = started(run.state)
        task = _begun_task(run, first, request)
        interpreter = find_interpreter(request.python or first.interpreter, workspace.root)
        target = resolve_target(task.target)
        _refuse_other_request(request, first, target)
        _refuse_other_environment(first, workspace, describe_environment(interpreter, target))
    except BaseException:  # handed on: the lock must not outlive the attempt
        run.close()
        raise
    return _Opened(run, task, target, interpreter)


def _replace_rejected(opened: _Opened, emit: Emit) -> None:
    """Where an outside agent left a program that was not accepted, go on with one that can be."""
    run = opened.run
    if run.state.finished is None and started(run.state).coder == OUTSIDE:
        take_usable(run, opened.task, opened.interpreter, emit)


def _begun_task(run: Run, first: RunStarted, request: SolveRequest) -> Task:
    """The task of a run, once all that was stored when the run began is known to be whole.

    Raises:
        StoreError: some of it is missing or damaged; no step makes it, but solving anew stores the same.
    """
    try:
        run.store.get(first.environment)
        task = run.store.get_fact(first.task, Task)
        for file in task.files:
            run.store.get(file.sha256)
    except StoreError as error:
        error.hint = f"`stitch-mcp solve REFERENCE` stores it again; then {_how_to_go_on(run, request)}"
        raise
    return task


def _refuse_other_request(request: SolveRequest, first: RunStarted, target: Target) -> None:
    """What was asked before the interruption must hold for what follows.

    Raises:
        UsageError: something differs; the message names it.
    """
    if request.overrides or request.inputs or (request.quick and not first.quick):
        raise UsageError(
            "a resumed run keeps its contract, inputs and baselines",
            hint="leave these options out, or solve anew",
        )
    asked = request.target and resolve_target(request.target).name
    for option, value, kept in (
        ("--target", asked, target.name),
        ("--min-speedup", request.min_speedup, first.min_speedup),
        ("--threads", request.threads, first.threads),
        ("--require-sandbox", request.require_sandbox, first.require_sandbox),
    ):
        if value is not None and value != kept:
            begun = "without it" if kept is None else f"with {kept}"
            raise UsageError(
                f"a resumed run keeps {option}: it was begun {begun}, and {value} is asked for",
                hint=f"leave {option} out, or solve anew",
            )


def _refuse_other_environment(first: RunStarted, workspace: Workspace, now: Environment) -> None:
    """What was done before the interruption must hold for what follows: same machine and tools.

    Raises:
        UsageError: something differs; the message names it.
    """
    then = workspace.store.get_fact(first.environment, Environment).model_dump()
    changed = [
        f"{name} was {then[name]}, is {value}"
        for name, value in now.model_dump().items()
        if then[name] != value
    ]
    if changed:
        raise UsageError(
            f"this run was begun in another environment: {'; '.join(changed)}",
            hint="solve the reference anew",
        )


@dataclass(frozen=True)
class _Budget:
    """What ends a run between two steps."""

    stop: threading.Event
    end_s: float
    """A time.monotonic() value."""
    request: SolveRequest

    def check(self, run: Run) -> None:
        """Raise where the run has to end here."""
        kept = f"before the step '{_open_step(run)}'; everything up to it is kept"
        hint = _how_to_go_on(run, self.request)
        if self.stop.is_set():
            raise InterruptedRunError(f"stopped {kept}", hint=hint)
        if time.monotonic() > self.end_s:
            raise BudgetError(f"the time limit was reached {kept}", hint=hint)


def _advance(opened: _Opened, request: SolveRequest, emit: Emit, budget: _Budget, lost: str | None) -> None:
    run = opened.run
    first = started(run.state)
    if request.resume is not None:
        _record_resumption(run, emit, lost)
    with Work(
        run=run,
        task=opened.task,
        target=opened.target,
        interpreter=opened.interpreter,
        emit=emit,
        require_sandbox=first.require_sandbox,
        threads=first.threads,
        cache_dir=request.cache_dir,
        build_time_limit_s=request.build_time_limit_s,
        stop=budget.stop,
    ) as work:
        for name, step in STEPS:
            if getattr(run.state, name) is not None:
                continue
            budget.check(run)
            try:
                step(work)
            except StitchError as error:
                # Ctrl-C reaches the whole process group; a child that is just being started may die of it.
                if budget.stop.is_set():
                    budget.check(run)
                if isinstance(error, EnvironmentMissingError | StoreError):
                    error.hint = f"{error.hint.rstrip('.')}; then {_how_to_go_on(run, request)}"
                raise


def _record_resumption(run: Run, emit: Emit, lost: str | None) -> None:
    """Record where the run goes on: at the first step whose result is damaged, else at the open one."""
    if lost is not None:
        emit(f"what the step '{lost}' had found is missing or damaged: done again from there")
    # Once for any number of attempts that ended before their first step.
    elif run.log.events[-1].kind == _RESUMED:
        return
    run.record(RunResumed(step=lost or run.state.resumed_at))


def _how_to_go_on(run: Run, request: SolveRequest) -> str:
    return f"go on with: {request.resume_command(run.run_id)}"


def _open_step(run: Run) -> str:
    """Name of the first step that is not done."""
    return next((name for name, _ in STEPS if getattr(run.state, name) is None), STEPS[-1][0])


def _record_stop(run: Run, error: BaseException) -> None:
    """Leave in the log why the run ends here. A log that cannot be written leaves the run open."""
    if run.state.finished is not None:
        return
    if isinstance(error, StitchError):
        code, message, hint = error.code, error.message, error.hint
    elif isinstance(error, KeyboardInterrupt):
        code, message, hint = "interrupted", "stopped at once; the finished steps are kept", ""
    else:
        code, message, hint = "internal", f"{type(error).__name__}: {error}", ""
    with contextlib.suppress(StoreError):
        run.record(RunStopped(step=_open_step(run), code=code, message=message[:2000], hint=hint[:2000]))


def _result(run: Run, task: Task) -> SolveResult:
    state, store = run.state, run.store
    if state.finished is None:
        raise StoreError("the run ended without its last event", hint="solve again; this is a fault of ours")
    check = store.get_fact(state.check.check, Check) if state.check else None
    bench = store.get_fact(state.bench.bench, Bench) if state.bench else None
    built = store.get_fact(state.build.build, Build) if state.build and state.build.build else None
    sources = run.folder / SOURCES_FOLDER
    eager = bench.ratio("eager") if bench else None
    finished: RunFinished = state.finished
    return SolveResult(
        run_id=run.run_id,
        run_folder=str(run.folder.resolve()),
        task=task.name,
        target=task.target,
        status=finished.status,
        outcome=finished.outcome,
        program_id=state.program.program_id if state.program else None,
        certificate=str((run.folder / state.certificate.file).resolve()) if state.certificate else None,
        sources=str(sources.resolve()) if sources.is_dir() else None,
        library=built.artifact if built else None,
        speedup=eager.speedup if eager else None,
        min_speedup=started(state).min_speedup,
        message=finished.message,
        warnings=state.reference.warnings if state.reference else (),
        notes=state.program.notes if state.program else (),
        check=check,
        bench=bench,
    )
