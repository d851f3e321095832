"""Opens the workbench of a call from its settings, and finds the task and the program that a user names."""

import time
from collections.abc import Mapping
from pathlib import Path

from stitch_mcp.config import Config
from stitch_mcp.named_programs import read_program
from stitch_planner.budget import resume_remedy
from stitch_planner.runs.run import Workspace, read_attempts
from stitch_planner.workbench import Emit, Workbench
from stitch_tools.errors import UsageError
from stitch_tools.models.program import Program
from stitch_tools.models.task import Task


def open_workbench(config: Config, emit: Emit | None = None) -> Workbench:
    """The workbench for one call; makes the `.stitch` folder.

    Raises:
        StoreError: the workspace cannot be written.
    """
    workspace = Workspace(config.workspace)
    workspace.prepare()
    return workbench_in(workspace, config, emit)


def workbench_in(workspace: Workspace, config: Config, emit: Emit | None = None) -> Workbench:
    """A workbench with these settings in a workspace that may be another one than theirs."""
    return Workbench(
        workspace=workspace,
        python=config.python,
        threads=config.threads,
        require_sandbox=config.require_sandbox,
        cache_dir=config.cache_dir,
        build_time_limit_s=config.build_time_limit_s,
        bench_budget_s=config.bench_budget_s,
        compile_baselines=config.compile_baselines,
        policy=config.policy,
        emit=emit,
        deadline_s=time.monotonic() + config.time_limit_s,
    )


def target_name(config: Config) -> str:
    """The target's full name: `cuda` becomes the architecture of the GPU here."""
    from stitch_tools.machine.devices import resolve_target

    return resolve_target(config.target).name


def find_task(
    config: Config,
    workspace: Workspace,
    reference: str | Path,
    inputs: str | None = None,
    overrides: Mapping[str, object] | None = None,
    allow_relaxed: bool = False,
    *,
    mark_relaxed: bool = False,
) -> Task:
    """The task that `reference` names; relative paths start at the current folder.

    With `mark_relaxed` a loosening is allowed, too, but nothing is refused that loosens nothing.

    Raises:
        TaskError: the reference cannot be used.
        UsageError: an override is wrong, or loosens the contract where the settings forbid it.
    """
    from stitch_tools.task.references import load_task

    if allow_relaxed:
        refuse_forbidden(config)
    task = load_task(
        str(reference),
        workspace=Path.cwd(),
        store=workspace.store,
        target=target_name(config),
        overrides=overrides or {},
        allow_relaxed=allow_relaxed or mark_relaxed,
        inputs=inputs,
    )
    if task.contract.relaxed:
        refuse_forbidden(config)
    return task


def find_program(
    workspace: Workspace, program: str | Path, target: str, main: str | None = None, *, native: bool = False
) -> Program:
    """The program at a path, or that of a run; `native`: one that a compiler takes.

    Raises:
        UsageError: there is no such program.
    """
    path = Path(program).expanduser()
    if not path.exists() and (str(program) == "last" or "/" not in str(program)):
        run_id = str(program)
        if run_id == "last" or any(name.startswith(run_id) for name in workspace.run_ids()):
            attempt = read_attempts(workspace.run_folder(run_id), workspace.store).result
            if attempt is None:
                raise UsageError(f"run {run_id} has no program yet", remedies=(resume_remedy(run_id),))
            return workspace.store.get_fact(attempt.program.program, Program)
    return read_program(path, workspace.store, target=target, main=main, native=native)


def refuse_forbidden(config: Config) -> None:
    """Refuse a loosened contract where the settings forbid it.

    Raises:
        UsageError: they do; the message names the setting's source.
    """
    if config.forbid_relaxed:
        origin = config.origin("forbid_relaxed")
        raise UsageError(
            f"loosening a contract is forbidden here ({origin})",
            hint="leave out {allow_relaxed}",
            options=("allow_relaxed",),
        )
