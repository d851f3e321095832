"""Opens runs: new ones with their first event, and those that are resumed where they may be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stitch_planner.budget import resume_remedy
from stitch_planner.llm.model_settings import ROUNDS, ModelLimits, ModelSettings, require_model, settings_of
from stitch_planner.llm.providers import require_ready
from stitch_planner.runs.reviews import ReviewMode
from stitch_planner.runs.run import Run, Workspace, started
from stitch_planner.runs.run_events import PlannerName, RunStarted, SearchName
from stitch_planner.workbench import Workbench
from stitch_tools.errors import StoreError, UsageError
from stitch_tools.machine.devices import Target, resolve_target
from stitch_tools.models.acceptance import AcceptPolicy
from stitch_tools.models.environment import Environment
from stitch_tools.models.program import STITCHER
from stitch_tools.models.remedy import Remedy
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import SandboxLevel
from stitch_tools.run.environment_facts import describe_environment
from stitch_tools.storage.events import Event
from stitch_tools.task.references import load_task

OnEvent = Callable[[Event], None] | None


@dataclass(frozen=True)
class SolveRequest:
    """What to solve, and how. Either `reference` or `resume` is given.

    A resumed run keeps `target`, `min_speedup`, `threads`, `require_sandbox` and `policy`: None, or what it
    began with.
    """

    workspace: Path
    reference: str | None = None
    """A KernelBench-style file, `path.py:Object`, or a task.toml."""
    resume: str | None = None
    """Run id (or its unique beginning, or "last") to resume."""
    target: str | None = None
    """Device to build for; None: cpu, or that of the run which is resumed."""
    overrides: Mapping[str, object] = field(default_factory=dict[str, object])
    """Fields of the contract that the caller sets."""
    allow_relaxed: bool = False
    """Whether `overrides` may loosen the contract, which marks every result."""
    policy: AcceptPolicy | None = None
    """Which shortcomings of a correct program are accepted; None: none, or what the resumed run accepts."""
    python: str | None = None
    """Target interpreter; None: found as `find_interpreter` says."""
    quick: bool = False
    min_speedup: float | None = None
    require_sandbox: SandboxLevel | None = None
    threads: int | None = None
    cache_dir: Path | None = None
    time_limit_s: float | None = None
    """Time after which no further step is started; None: no limit."""
    build_time_limit_s: float = 600.0
    bench_budget_s: float = 60.0
    """Time for a bench's rounds; half of it in quick runs."""
    compile_baselines: bool = True
    """Whether torch.compile is timed beside a program."""
    inputs: str | None = None
    """Name of the input maker; None: the task file's, else get_inputs."""
    coder: str | None = None
    """`stitcher`; or, after it, `llm`, `acp:AGENT`, `manual` or `replay:FOLDER`. None: stitcher, or that of
    the run which is resumed."""
    model: str | None = None
    """Model of the coder `llm`: a name of `models`, or the endpoint's own."""
    models: Mapping[str, ModelSettings] = field(default_factory=dict[str, ModelSettings])
    planner: PlannerName | None = None
    """`model`: the coder's model refines the plan first. None: `none`, or that of the resumed run."""
    rounds: int | None = None
    """How many programs a model may write."""
    search: SearchName | None = None
    """How the program is chosen that the next one is made from. None: greedy, or that of the run which is
    resumed."""
    review: ReviewMode | None = None
    """Whether the model is asked for its opinion on each program. None: no, or as the resumed run does."""
    memory: Path | None = None
    """File of lessons that runs teach each other; None: none. A resumed run keeps whether it has one."""
    limits: ModelLimits = field(default_factory=ModelLimits)
    """What may be spent on a model."""


@dataclass(frozen=True)
class OpenedRun:
    """A run that is new or resumed, open for writing, with what its steps need."""

    run: Run
    task: Task
    target: Target
    """The task's device, and whether it is here."""
    workbench: Workbench


def open_run(request: SolveRequest, workbench: Workbench, on_event: OnEvent = None) -> OpenedRun:
    """The run that a request begins or resumes.

    Raises:
        UsageError: the request names none, two, or one that cannot be resumed in this way.
        TaskError: the reference cannot be used.
        StoreError: what the run began with is damaged.
    """
    return _resume(request, workbench, on_event) if request.resume else _begin(request, workbench, on_event)


def begin_run(
    workbench: Workbench,
    task: Task,
    *,
    coder: str,
    model: str = "",
    planner: PlannerName = "none",
    rounds: int | None = None,
    search: SearchName = "greedy",
    review: ReviewMode = "none",
    memory: bool = False,
    quick: bool = False,
    min_speedup: float | None = None,
    on_event: OnEvent = None,
) -> Run:
    """A new run at this workbench with its first event, open for writing.

    Raises:
        StoreError: it cannot be written.
    """
    workspace, interpreter = workbench.workspace, workbench.interpreter
    first = RunStarted(
        task=workspace.store.put_fact(task),
        task_id=task.task_id,
        coder=coder,
        model=model,
        planner=planner,
        rounds=rounds,
        search=search,
        review=review,
        memory=memory,
        quick=quick,
        min_speedup=min_speedup,
        threads=workbench.threads,
        require_sandbox=workbench.require_sandbox,
        policy=workbench.policy,
        interpreter=str(interpreter.path),
        environment=workspace.store.put_fact(describe_environment(interpreter, resolve_target(task.target))),
    )
    # Everything that can be wrong with a request was checked by now: no folder is left behind by a typing
    # error.
    run = Run(workspace.new_run_folder(task), workspace.store, on_event=on_event)
    try:
        run.record(first)
    except BaseException:  # handed on: the lock must not outlive the attempt
        run.close()
        raise
    return run


def _begin(request: SolveRequest, workbench: Workbench, on_event: OnEvent) -> OpenedRun:
    if request.reference is None:
        raise UsageError(
            "nothing to solve", hint="name a reference file, or a run with {resume}", options=("resume",)
        )
    target = resolve_target(request.target or "cpu")
    coder = request.coder or STITCHER
    # Before anything is recorded: a model that is not named, or has no key, leaves no folder behind.
    require_model(coder, request.model, request.models)
    if coder != STITCHER:
        settings = settings_of(coder, request.model or "", request.models)
        require_ready(coder, settings, request.limits, workbench.workspace.root)
    _require_planner(request.planner, coder)
    task = load_task(
        request.reference,
        workspace=Path.cwd(),
        store=workbench.workspace.store,
        target=target.name,
        overrides=request.overrides,
        allow_relaxed=request.allow_relaxed,
        inputs=request.inputs,
    )
    run = begin_run(
        workbench,
        task,
        coder=coder,
        model=request.model or "",
        planner=request.planner or "none",
        rounds=None if coder == STITCHER else request.rounds or ROUNDS,
        search=request.search or "greedy",
        review=request.review or "none",
        memory=coder != STITCHER and request.memory is not None,
        quick=request.quick,
        min_speedup=request.min_speedup,
        on_event=on_event,
    )
    return OpenedRun(run, task, target, workbench)


def _require_planner(planner: PlannerName | None, coder: str) -> None:
    if planner == "model" and coder == STITCHER:
        raise UsageError(
            "the planner asks the coder's model, and the stitcher is no model",
            hint="name one with {coder}, or leave {planner} out",
            options=("coder", "planner"),
        )


def _resume(request: SolveRequest, workbench: Workbench, on_event: OnEvent) -> OpenedRun:
    if request.reference is not None:
        raise UsageError(
            "a resumed run has its reference already",
            hint="give a reference or {resume}, not both",
            options=("resume",),
        )
    workspace = workbench.workspace
    run = Run(workspace.run_folder(request.resume or ""), workspace.store, on_event=on_event)
    try:
        # What a run began with is taken from its first event, not from the present settings: figures of one
        # run must be comparable.
        first = started(run.state)
        task = _started_task(run, first)
        workbench = replace(
            workbench,
            python=request.python or first.interpreter,
            threads=first.threads,
            require_sandbox=first.require_sandbox,
            policy=first.policy,
        )
        # Resolved anew: the device may be gone since the run began.
        target = resolve_target(task.target)
        _refuse_other_request(request, first, target)
        _refuse_other_environment(first, workspace, describe_environment(workbench.interpreter, target))
    except BaseException:  # handed on: the lock must not outlive the attempt
        run.close()
        raise
    return OpenedRun(run, task, target, workbench)


def _started_task(run: Run, first: RunStarted) -> Task:
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
        anew = Remedy(tool="solve", arguments={"reference": "REFERENCE"}, why="store it again")
        raise StoreError(error.message, remedies=(anew, resume_remedy(run.run_id))) from error
    return task


def _refuse_other_request(request: SolveRequest, first: RunStarted, target: Target) -> None:
    """What was asked before the interruption must hold for what follows.

    Raises:
        UsageError: something differs; the message names it.
    """
    # `quick` may only be repeated: a run with full baselines would otherwise mix two kinds of timing.
    if request.overrides or request.inputs or (request.quick and not first.quick):
        raise UsageError(
            "a resumed run keeps its contract, inputs and baselines",
            hint="leave these options out, or solve anew",
        )
    asked = request.target and resolve_target(request.target).name
    policy = None if request.policy is None else ",".join(request.policy.names)
    for option, value, kept in (
        ("--target", asked, target.name),
        ("--min-speedup", request.min_speedup, first.min_speedup),
        ("--threads", request.threads, first.threads),
        ("--require-sandbox", request.require_sandbox, first.require_sandbox),
        ("--coder", request.coder, first.coder),
        ("--model", request.model, first.model),
        ("--planner", request.planner, first.planner),
        ("--rounds", request.rounds, first.rounds),
        ("--search", request.search, first.search),
        ("--review", request.review, first.review),
        ("--accept", policy, ",".join(first.policy.names)),
    ):
        if value is not None and value != kept:
            kept_as = f"with {kept}" if kept else "without it"
            raise UsageError(
                f"a resumed run keeps {option}: it was started {kept_as}, and {value} is asked for",
                hint=f"leave {option} out, or solve anew",
            )


def _refuse_other_environment(first: RunStarted, workspace: Workspace, now: Environment) -> None:
    """What was done before the interruption must hold for what follows: same machine and tools.

    Raises:
        UsageError: something differs; the message names it.
    """
    # Every field counts, also CPU model and compiler: times from two environments must not meet in one
    # certificate.
    then = workspace.store.get_fact(first.environment, Environment).model_dump()
    changed = [
        f"{name} was {then[name]}, is {value}"
        for name, value in now.model_dump().items()
        if then[name] != value
    ]
    if changed:
        raise UsageError(
            f"this run was started in another environment: {'; '.join(changed)}",
            hint="solve the reference anew",
        )
