"""A program under every sanitizer of its device: one SanitizerRun each, whatever happens to the program."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.judge.memory.conclude import not_checked
from stitch_tools.judge.memory.cpu import CPU_TOOLS, CpuBench, run_cpu
from stitch_tools.judge.memory.cuda import CUDA_TOOLS, CudaBench, run_cuda
from stitch_tools.judge.memory.material import OWN, Material, drawn, kinds_for
from stitch_tools.judge.trial import Trial
from stitch_tools.models import Build, Program, ReferenceFacts, Task
from stitch_tools.models.sanitizer import SanitizerRun, SanitizerTool
from stitch_tools.run.reference_server import NoDeviceError, ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.run.tool_process import TOO_SLOW
from stitch_tools.storage.store import Store

Emit = Callable[[str], None] | None
_Run = Callable[[Sequence[SanitizerTool], Material], dict[SanitizerTool, SanitizerRun]]


@dataclass(frozen=True)
class SanitizeOptions:
    """Which tools run, and how long each may take."""

    tools: Sequence[SanitizerTool] = ()
    """() is all of the device's."""
    limit_s: float = 120.0
    """Seconds of one draw under one tool, however busy the machine is; what takes longer is not checked."""
    build_limit_s: float = 300.0
    """Seconds for building the program with a sanitizer."""
    cache_dir: Path | None = None
    """Cache folder; None is the user's."""


def tools_of(target: str) -> tuple[SanitizerTool, ...]:
    """The sanitizers of a target."""
    return CUDA_TOOLS if target.startswith("cuda") else CPU_TOOLS


def sanitize_program(trial: Trial, options: SanitizeOptions | None = None) -> tuple[SanitizerRun, ...]:
    """One run for each tool, in the order of `tools_of`; a tool that could not say anything is `not_checked`.

    Args:
        trial: the program, accepted or not, beside its reference.
        options: tools and limits.

    Raises:
        TaskError: the reference itself fails.
        WorkerError, SandboxError: a failure of ours or of this machine.
    """
    task, program, build, session, store = trial.task, trial.program, trial.build, trial.session, trial.store
    chosen = options or SanitizeOptions()
    tools: tuple[SanitizerTool, ...] = tools_of(task.target)
    if chosen.tools:
        tools = tuple(tool for tool in tools if tool in chosen.tools)
    reason = _impossible(task, program, build, trial.facts)
    if reason is not None:
        return tuple(not_checked(tool, reason) for tool in tools)
    run = _runner(task, program, build, session, store, chosen)
    found: dict[SanitizerTool, SanitizerRun] = {}
    with ExitStack() as stack:
        try:
            server = trial.reference or stack.enter_context(ReferenceServer(session, task, store))
        except NoDeviceError as error:
            return tuple(not_checked(tool, error.message) for tool in tools)
        for kind in kinds_for(task):
            missing = _missing(tools, found, smaller=kind != OWN)
            if not missing or trial.is_late:
                break
            with drawn(server, task, trial.facts, kind) as material:
                if material is None:
                    continue
                for row in _rows(run, _groups(task, missing), material, trial.emit):
                    # Of two reasons that of the task's own shapes is the one that tells something.
                    if row.tool not in found or row.status != "not_checked" or kind == OWN:
                        found[row.tool] = row
                        _say(trial.emit, row)
    return tuple(found.get(tool) or not_checked(tool, "there was no time left") for tool in tools)


def _missing(
    tools: Sequence[SanitizerTool], found: dict[SanitizerTool, SanitizerRun], *, smaller: bool
) -> tuple[SanitizerTool, ...]:
    """The tools that another draw may help: slow ones if it is smaller, others where all failed."""
    slow = {tool for tool, run in found.items() if run.reason.startswith(TOO_SLOW)}
    if all(run.status == "not_checked" for run in found.values()):
        return tuple(tool for tool in tools if smaller or tool not in slow)
    return tuple(tool for tool in tools if smaller and tool in slow)


def _groups(task: Task, tools: Sequence[SanitizerTool]) -> list[tuple[SanitizerTool, ...]]:
    """The tools by what they are built and run with: those of a group share it."""
    if task.target != "cpu":
        return [tuple(tools)]
    groups: list[tuple[SanitizerTool, ...]] = [
        tuple(tool for tool in tools if tool != "tsan"),
        tuple(tool for tool in tools if tool == "tsan"),
    ]
    return [group for group in groups if group]


def _rows(
    run: _Run, groups: Sequence[tuple[SanitizerTool, ...]], material: Material, emit: Emit
) -> Iterator[SanitizerRun]:
    for group in groups:
        if emit is not None:
            emit(f"building and running it under {', '.join(group)}")
        yield from run(group, material).values()


def _impossible(task: Task, program: Program, build: Build | None, facts: ReferenceFacts) -> str | None:
    """Why no tool can run, None where one can."""
    if program.format != "native" and task.target == "cpu":
        return "a Python program builds its own code: only native programs are rebuilt with sanitizers"
    if program.format == "native" and (build is None or build.artifact is None):
        return "the program was not built"
    if program.format == "native" and facts.uses_rng:
        return "the reference draws random numbers in forward, which a native program cannot repeat yet"
    return None


def _runner(
    task: Task,
    program: Program,
    build: Build | None,
    session: TargetSession,
    store: Store,
    options: SanitizeOptions,
) -> _Run:
    if task.target == "cpu":
        assert build is not None  # _impossible has looked
        cpu = CpuBench(
            program=program,
            build=build,
            session=session,
            store=store,
            cache_dir=options.cache_dir,
            prefixes=(session.interpreter.prefix,),
            limit_s=options.limit_s,
            build_limit_s=options.build_limit_s,
        )
        return lambda tools, material: run_cpu(cpu, tools, material)
    cuda = CudaBench(task, program, build, session, store, options.cache_dir, options.limit_s)
    return lambda tools, material: run_cuda(cuda, tools, material)


def _say(emit: Emit, run: SanitizerRun) -> None:
    if emit is None:
        return
    if run.status == "not_checked":
        emit(f"{run.tool}: not checked, {run.reason}")
    elif run.findings:
        first = run.findings[0]
        place = f"{first.file}:{first.line}: " if first.file and first.line else ""
        more = f" and {len(run.findings) - 1} more" if len(run.findings) > 1 else ""
        emit(f"{run.tool}: {place}{first.message}{more}")
    else:
        emit(f"{run.tool}: clean")
