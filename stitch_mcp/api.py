"""The public functions: simple arguments in, facts out. The command line calls these very functions.

Settings (`workspace`, `python`, `target`, `threads`, ...) may be given by keyword to each; those that are not
come from the environment and the configuration files, as docs/cli.md says.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from stitch_mcp.config import Config, Settings, configure
from stitch_mcp.workbench import find_program, find_task, open_workbench, refuse_forbidden, target_name
from stitch_planner.workbench import Emit, Workbench
from stitch_tools.errors import UsageError
from stitch_tools.models.graph import Ceilings, Graph
from stitch_tools.models.program import Build
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.models.verdict import Bench, Check

if TYPE_CHECKING:
    from stitch_planner.loop import SolveResult
    from stitch_planner.opening import SolveRequest
    from stitch_planner.plan import Plan
    from stitch_planner.runs.state import State
    from stitch_tools.models.profile import Profile, ProfileLevel
    from stitch_tools.profile.profile_work import SystemTool

_CEILINGS_WAIT_S = 2.0
"""A reference can be shown without predicted times, so nobody waits long for another one's timing."""


@dataclass(frozen=True)
class Captured:
    """A reference seen from all sides, before anything is made faster."""

    task: Task
    facts: ReferenceFacts
    graph: Graph
    ceilings: Ceilings | None
    """None where the target device is not here, or others time on it and it was never measured."""


def load_task(
    reference: str | Path,
    *,
    inputs: str | None = None,
    overrides: Mapping[str, object] | None = None,
    allow_relaxed: bool = False,
    **settings: Unpack[Settings],
) -> Task:
    """The task that `reference` names, loaded without running any of it.

    Args:
        reference: `path.py`, `path.py:Object` or a task.toml.
        inputs: name of the input maker, where it is not get_inputs.
        overrides: contract fields to set, for example `{"rtol": 1e-4}`.
        allow_relaxed: accept fields that ask for less; every result is then marked `relaxed`.
        settings: see `stitch_mcp.config.Settings`.

    Raises:
        TaskError: the reference cannot be used.
        UsageError: a bad setting or override.
    """
    config = configure(settings)
    return find_task(config, open_workbench(config).workspace, reference, inputs, overrides, allow_relaxed)


def compile_program(
    program: str | Path,
    *,
    main: str | None = None,
    archs: Sequence[str] = (),
    emit: Emit | None = None,
    **settings: Unpack[Settings],
) -> Build:
    """The build of a program: an artifact, or the compiler's diagnostics.

    Args:
        program: a folder, a file, a certificate, or a run (its id, or "last").
        main: the file of a folder that is compiled, where it is not clear.
        archs: GPU architectures; empty is the target's own.
        emit: receives progress sentences.
        settings: see `stitch_mcp.config.Settings`.

    Raises:
        EnvironmentMissingError: no fitting compiler, or missing headers.
        SandboxError: compilers are isolated less than required.
        UsageError: there is no such program, or it is C++ and `archs` names GPUs, or `target` is not its own.
    """
    config = configure(settings)
    workbench, target = open_workbench(config, emit), target_name(config)
    files = find_program(workbench.workspace, program, target, main, native=True)
    # A target from a settings file is a default and may differ; one that was typed for this call may not.
    if config.origin("target") == "--target" and files.target != target:
        raise UsageError(
            f"{files.main} was made for {files.target}, and --target asks for {target}",
            hint="leave --target out: a program of a run or a certificate keeps its own",
        )
    return workbench.build(files, archs)


def check_program(
    reference: str | Path,
    program: str | Path,
    *,
    sanitize: bool = False,
    reference_tolerance: bool = False,
    main: str | None = None,
    inputs: str | None = None,
    overrides: Mapping[str, object] | None = None,
    allow_relaxed: bool = False,
    mark_relaxed: bool = False,
    emit: Emit | None = None,
    **settings: Unpack[Settings],
) -> Check:
    """The correctness evidence for `program` against `reference`. A wrong program is a status, no exception.

    Args:
        reference: as in `load_task`.
        program: as in `compile_program`.
        sanitize: also look for memory errors, races and undefined behavior, which takes longer.
        reference_tolerance: make as many draws of the task's own inputs as KernelBench's rule asks for.
        main: as in `compile_program`.
        inputs: as in `load_task`.
        overrides: as in `load_task`.
        allow_relaxed: as in `load_task`.
        mark_relaxed: the same, and settings that forbid loosening refuse only overrides that do loosen.
        emit: receives progress sentences.
        settings: see `stitch_mcp.config.Settings`.

    Raises:
        TaskError: the reference cannot be used.
        EnvironmentMissingError: no torch, no compiler, or weaker isolation than required.
    """
    config = configure(settings)
    workbench = open_workbench(config, emit)
    workspace = workbench.workspace
    task = find_task(
        config, workspace, reference, inputs, overrides, allow_relaxed, mark_relaxed=mark_relaxed
    )
    with workbench.trial(task, find_program(workspace, program, task.target, main)) as trial:
        return workbench.check(trial, sanitize=sanitize, reference_tolerance=reference_tolerance)


def benchmark_program(
    reference: str | Path,
    program: str | Path,
    *,
    quick: bool = False,
    main: str | None = None,
    inputs: str | None = None,
    overrides: Mapping[str, object] | None = None,
    allow_relaxed: bool = False,
    emit: Emit | None = None,
    **settings: Unpack[Settings],
) -> Bench:
    """The times of `program`, eager and torch.compile, side by side. Correctness is `check_program`'s matter.

    Args:
        reference: as in `load_task`.
        program: as in `compile_program`.
        quick: the fewest rounds, and of torch.compile the default mode alone.
        main: as in `compile_program`.
        inputs: as in `load_task`.
        overrides: as in `load_task`.
        allow_relaxed: as in `load_task`.
        emit: receives progress sentences.
        settings: see `stitch_mcp.config.Settings`.

    Raises:
        TaskError: the reference cannot be used.
        EnvironmentMissingError: no torch, no compiler, or weaker isolation than required.
    """
    config = configure(settings)
    workbench = open_workbench(config, emit)
    task = find_task(config, workbench.workspace, reference, inputs, overrides, allow_relaxed)
    with workbench.trial(task, find_program(workbench.workspace, program, task.target, main)) as trial:
        return workbench.benchmark(trial, quick=quick)


def profile_program(
    reference: str | Path,
    program: str | Path | None = None,
    *,
    level: "ProfileLevel" = "system",
    tool: "SystemTool" = "auto",
    ask: str = "",
    main: str | None = None,
    inputs: str | None = None,
    overrides: Mapping[str, object] | None = None,
    allow_relaxed: bool = False,
    emit: Emit | None = None,
    **settings: Unpack[Settings],
) -> "Profile":
    """Where the time of `program`, or of the reference without one, goes, and what would win most of it.

    A program is checked first, and profiled only if it is accepted. What goes wrong under a profiler is a
    status of the profile, no exception.

    Args:
        reference: as in `load_task`.
        program: as in `compile_program`; None profiles the reference.
        level: `system` (host and device side by side), `kernel` (questions about single kernels) or `both`.
        tool: for the system level: `nsys`, `torch.profiler`, or the best that works here.
        ask: one question, a rule's or a kernel question's name: what it needs is recorded, whatever `level`.
        main: as in `compile_program`.
        inputs: as in `load_task`.
        overrides: as in `load_task`.
        allow_relaxed: as in `load_task`.
        emit: receives progress sentences.
        settings: see `stitch_mcp.config.Settings`.

    Raises:
        UsageError: there is no such question.
        TaskError: the reference cannot be used.
        EnvironmentMissingError: no torch, no compiler, or weaker isolation than required.
    """
    from stitch_planner.profile_steps import known_facts, profile_task
    from stitch_tools.profile.asking import options_for
    from stitch_tools.profile.profile_work import ProfileOptions

    config = configure(settings)
    workbench = open_workbench(config, emit)
    workspace = workbench.workspace
    task = find_task(config, workspace, reference, inputs, overrides, allow_relaxed)
    options = options_for(
        ProfileOptions(level=level, tool=tool, cache_dir=config.cache_dir), ask, task.target
    )
    if program is None:
        with workbench.session() as session:
            return profile_task(workbench, session, task, options=options)
    with workbench.trial(task, find_program(workspace, program, task.target, main)) as trial:
        known = known_facts(workbench, trial.session, task, facts=trial.facts)
        return workbench.profile(trial, workbench.check(trial), options=options, known=known)


def capture_reference(
    reference: str | Path,
    *,
    inputs: str | None = None,
    overrides: Mapping[str, object] | None = None,
    allow_relaxed: bool = False,
    emit: Emit | None = None,
    **settings: Unpack[Settings],
) -> Captured:
    """What one run of the reference shows: facts, graph, and the device's ceilings.

    Raises:
        TaskError: the reference cannot be used.
        EnvironmentMissingError: no torch in the target interpreter.
    """
    config = configure(settings)
    workbench = open_workbench(config, emit)
    task = find_task(config, workbench.workspace, reference, inputs, overrides, allow_relaxed)
    return capture_task(workbench, task)


def capture_task(workbench: Workbench, task: Task) -> Captured:
    """What one run of the task's reference shows: facts, graph, and the device's ceilings.

    Raises:
        TaskError: the reference cannot be used.
        EnvironmentMissingError: no torch in the target interpreter.
    """
    from stitch_tools.errors import LockedError
    from stitch_tools.graph import capture_graph
    from stitch_tools.machine.devices import resolve_target
    from stitch_tools.run.ceilings import measure_ceilings

    with workbench.session() as session:
        ceilings = None
        if resolve_target(task.target).available:
            try:
                ceilings = measure_ceilings(
                    task.target,
                    cache_dir=workbench.cache_dir,
                    session=session,
                    emit=workbench.emit,
                    wait_s=_CEILINGS_WAIT_S,
                )
            except LockedError as error:
                workbench.say(
                    f"no times are predicted, since this device was not measured yet: {error.message}"
                )
        with workbench.observed(session, task) as (server, facts):
            workbench.say("capturing the graph")
            graph = capture_graph(server.child, task, facts, ceilings)
    return Captured(task, facts, graph, ceilings)


def plan_reference(captured: Captured) -> "Plan":
    """The order of work for a captured reference: fusion groups with predicted times."""
    from stitch_planner.planning import try_plan

    return try_plan(captured.graph, captured.facts, captured.task, captured.ceilings)


def measure_device(
    *, refresh: bool = False, emit: Emit | None = None, **settings: Unpack[Settings]
) -> Ceilings:
    """The target device's measured limits, from the cache unless `refresh`.

    Raises:
        EnvironmentMissingError: the device is not here, or no torch in the target interpreter.
    """
    from stitch_tools.run.ceilings import measure_ceilings

    config = configure(settings)
    with open_workbench(config, emit).session() as session:
        return measure_ceilings(
            target_name(config), cache_dir=config.cache_dir, session=session, refresh=refresh, emit=emit
        )


def solve(
    reference: str | Path | None = None,
    *,
    resume: str | None = None,
    quick: bool = False,
    inputs: str | None = None,
    overrides: Mapping[str, object] | None = None,
    allow_relaxed: bool = False,
    emit: Emit | None = None,
    stop: threading.Event | None = None,
    on_state: "Callable[[State], None] | None" = None,
    **settings: Unpack[Settings],
) -> "SolveResult":
    """The end of a run that makes `reference` faster: status, outcome, and the certificate's path.

    Args:
        reference: as in `load_task`; None with `resume`.
        resume: a run to resume: its id, a unique beginning of it, or "last".
        quick: no sanitizers, the fewest rounds, and of torch.compile the default mode alone.
        inputs: as in `load_task`.
        overrides: as in `load_task`.
        allow_relaxed: as in `load_task`.
        emit: receives progress sentences.
        stop: when set, the run ends after the step in flight, or in its timing, and can be resumed.
        on_state: sees where the run stands before each step.
        settings: see `stitch_mcp.config.Settings`.

    Raises:
        InterruptedRunError: `stop` was set; its remedy resumes the run.
        BudgetError: the time limit was reached; its remedy resumes the run.
        TaskError: the reference cannot be used.
        EnvironmentMissingError: something that this machine needs is missing.
    """
    config = configure(settings)
    # Refused before anything is started: the setting exists to keep loosened results from being made.
    if allow_relaxed:
        refuse_forbidden(config)

    from stitch_planner.loop import solve as run

    request = _solve_request(
        config,
        resumed=bool(resume),
        reference=None if reference is None else str(reference),
        resume=resume,
        overrides=overrides or {},
        allow_relaxed=allow_relaxed,
        quick=quick,
        inputs=inputs,
    )
    return run(request, emit=emit, stop=stop, on_state=on_state)


def _solve_request(config: Config, *, resumed: bool, **given: Any) -> "SolveRequest":
    """What the call and the settings say together."""
    from stitch_planner.llm.model_settings import ModelLimits
    from stitch_planner.memory_file import user_memory_file
    from stitch_planner.opening import SolveRequest

    return SolveRequest(
        workspace=config.workspace,
        # Like the settings below: a resumed run keeps its policy unless this very call names another one,
        # which is refused.
        policy=None if resumed and not config.origin("accept").startswith("--") else config.policy,
        python=config.python,
        cache_dir=config.cache_dir,
        time_limit_s=config.time_limit_s,
        build_time_limit_s=config.build_time_limit_s,
        bench_budget_s=config.bench_budget_s,
        compile_baselines=config.compile_baselines,
        models=config.models,
        memory=user_memory_file() if config.memory else None,
        limits=ModelLimits(config.max_model_tokens, config.max_model_usd),
        **given,
        **_kept_by_runs(config, resumed=resumed),
    )


def _kept_by_runs(config: Config, *, resumed: bool) -> dict[str, Any]:
    """The settings that a run keeps from its beginning; for a resumed one only those that this call gives."""
    # What a resumed run was started with takes precedence over settings of other sources.
    return {
        name: None if resumed and not config.origin(name).startswith("--") else getattr(config, name)
        for name in (
            "target",
            "min_speedup",
            "threads",
            "require_sandbox",
            "coder",
            "model",
            "planner",
            "rounds",
            "search",
            "review",
        )
    }
