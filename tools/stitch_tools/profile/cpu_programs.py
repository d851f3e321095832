"""The profile of a native CPU program: time by step where its source tells steps, else by function."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stitch_tools.compile.build import Recipe, plan_build, run_recipe, sources_of
from stitch_tools.compile.host_build import build_sampler, build_sanitizer_host
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.borders import border_names
from stitch_tools.judge.memory.case import OWN, SanitizeOptions, SanitizerCase, drawn_case
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.interference import snapshot, was_disturbed
from stitch_tools.models.profile import (
    KernelAnswer,
    KernelProfile,
    KernelTime,
    ModuleTime,
    Origin,
    ProfilerTool,
    ProfileStatus,
    Quantity,
    SystemProfile,
    TimeOwner,
)
from stitch_tools.models.program import Build, Program
from stitch_tools.profile.cpu_phases import (
    REPORT,
    WAITING,
    CodePlace,
    Phases,
    PhaseSample,
    StepTime,
    locate,
    parse_phases,
)
from stitch_tools.profile.cpu_steps import STEPS_HEADER, STEPS_HEADER_TEXT, mark_steps, module_of
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.tool_process import Execution, execute

_BUILD_LIMIT_S = 300.0
_SPEND_MS = 3000
"""Repeated for so long: about 3,000 samples."""
_LIMIT_S = 120.0
_MOST_ROWS = 60
_WAITING_SHARE = 0.25
_LISTED = 3
_FEW_SAMPLES = 100
_SHARE_WORK = (
    "Give all threads equal work in larger pieces, join neighbouring parallel regions, or use fewer threads "
    "for so little work."
)


@dataclass(frozen=True)
class CpuReport:
    """What profiling a CPU program gave, or why it gave nothing."""

    status: ProfileStatus
    message: str = ""
    system: SystemProfile | None = None
    kernels: tuple[KernelProfile, ...] = ()
    tools: tuple[ProfilerTool, ...] = (ProfilerTool(name="sampler"),)
    not_measured: tuple[str, ...] = ()
    wall_s: float | None = None


def profile_cpu_program(
    trial: Trial,
    reference: ReferenceServer,
    *,
    cache_dir: Path | None = None,
    spend_ms: int = _SPEND_MS,
    untraced_us: float | None = None,
) -> CpuReport:
    """Where an accepted native CPU program's time goes, in a build of its own that nobody times.

    Steps are those of a stitched program, or between its STITCH_BORDERs; functions come from samples of the
    calling thread. The system's perf needs perf_event_open, which the sandbox refuses to programs.

    Args:
        trial: an accepted program and its task.
        reference: draws inputs and weights.
        cache_dir: the build cache; None is the user's.
        spend_ms: for how long the forward is repeated.
        untraced_us: its latency from a benchmark, where it was timed.

    Raises:
        EnvironmentMissingError: no compiler.
        SandboxError: the isolation could not be applied.
        TaskError: the reference itself fails.
    """
    trial.say("building the program with marks and line tables")
    build = profiling_build(trial, cache_dir)
    if build.artifact is None:
        first = next((row.message for row in build.diagnostics), "no message")
        return CpuReport("crashed", f"the profiling build failed: {first[:300]}")
    with drawn_case(reference, trial, SanitizeOptions(cache_dir=cache_dir), OWN) as case:
        if case is None:
            return CpuReport("unmeasured", "the task has no draw of inputs")
        trial.say("sampling it")
        before = snapshot()
        execution = _run(case, build, cache_dir, spend_ms)
        is_quiet = not was_disturbed(before, snapshot())
    phases = parse_phases(execution.reports.get(REPORT, ""))
    if phases is None or not execution.done:
        status: ProfileStatus = "timed_out" if execution.timed_out else "crashed"
        return CpuReport(status, execution.why_not_done(_LIMIT_S), wall_s=execution.wall_s)
    files = [file.path for file in trial.program.files]
    places = locate(phases, Path(build.artifact), main=trial.program.main, files=files)
    report = summarize(phases, places, untraced_us=untraced_us, is_quiet=is_quiet)
    return replace(report, wall_s=execution.wall_s)


def profiling_build(trial: Trial, cache_dir: Path | None) -> Build:
    """The program as it is built otherwise, with line tables and, where its source allows, marked steps."""
    program, store = trial.program, trial.store
    sources = sources_of(program, store)
    marked = mark_steps(sources[program.main])
    flags = ["-g1", "-w"]
    if marked is not None:
        texts = {program.main: marked, STEPS_HEADER: STEPS_HEADER_TEXT}
        added = store.put_files({path: text.encode("utf-8") for path, text in texts.items()})
        kept = (file for file in program.files if file.path not in texts)
        program = program.model_copy(
            update={"files": tuple(sorted((*kept, *added), key=lambda file: file.path))}
        )
        flags += ["-include", STEPS_HEADER]
    elif border_names("\n".join(sources.values())):
        flags.append("-DSTITCH_BORDERS")
    recipe = plan_build(program, sources, prefixes=(trial.session.interpreter.prefix,))
    return run_recipe(
        _flagged(recipe, program, flags), store, cache_dir=cache_dir, time_limit_s=_BUILD_LIMIT_S
    )


def _flagged(recipe: Recipe, program: Program, flags: Sequence[str]) -> Recipe:
    # The marks are found when the program is loaded behind the sampler: the linker must not want them here.
    words = [word for word in recipe.command if word != "-Wl,-z,defs"]
    compiler = len(recipe.compiler.command)
    return replace(recipe, program=program, command=(*words[:compiler], *flags, *words[compiler:]))


def _run(case: SanitizerCase, build: Build, cache_dir: Path | None, spend_ms: int) -> Execution:
    session = case.trial.session
    host, sampler = build_sanitizer_host("", cache_dir), build_sampler(cache_dir)
    if build.artifact is None:
        raise EnvironmentMissingError("the program was not built")
    loaded = (str(sampler), *build.libraries)
    job = case.host_job(build.artifact, loaded, poison=0xFF, threads=session.threads)
    with Path(os.devnull).open("wb") as nowhere:  # outputs are of no interest here
        return execute(
            session,
            (str(host), "job", "{0}", "{1}", "{2}"),
            files={"job": f"{job}spend_ms {spend_ms}\n"},
            env={},
            fds=(*case.fds, nowhere.fileno()),
            readable=(host, *map(Path, (build.artifact, *loaded))),
            limit_s=_LIMIT_S,
        )


def summarize(
    phases: Phases,
    places: Mapping[PhaseSample, CodePlace],
    *,
    untraced_us: float | None = None,
    is_quiet: bool = True,
) -> CpuReport:
    """The facts of one run: rows are steps where there are any, else functions.

    Args:
        phases: from `parse_phases`.
        places: from `locate`.
        untraced_us: latency from a benchmark.
        is_quiet: whether the program had the machine for itself.
    """
    if not is_quiet:
        own = tuple(row for row in phases.samples if places[row].function != WAITING)
        phases = replace(phases, samples=own)
    wall_us = phases.median_ns / 1e3
    make_rows = _step_rows if phases.steps else _function_rows
    rows = make_rows(phases, places, is_quiet=is_quiet)
    busy_us = sum(row.total_us for row in rows)
    origin: Origin = "instrumented" if phases.steps else "sampled"
    system = SystemProfile(
        origin=origin,
        iterations=phases.calls,
        wall_us=wall_us,
        untraced_us=untraced_us,
        busy_us=busy_us,
        busy_share=min(1.0, busy_us / wall_us) if wall_us else 0.0,
        kernels=tuple(rows[:_MOST_ROWS]),
        other_kernels_us=sum(row.total_us for row in rows[_MOST_ROWS:]),
        modules=_modules(phases, is_quiet=is_quiet),
    )
    if phases.steps:
        kernels = _step_profiles(phases, places, is_quiet=is_quiet)
    else:
        kernels = _function_profiles(rows, phases, places)
    samples = sum(row.count for row in phases.samples)
    notes = ["what other threads do is not sampled, only what the calling one waits for"]
    if samples < _FEW_SAMPLES:
        notes.append(f"functions rest on {samples} samples only")
    if not is_quiet:
        notes.append(
            "others used this machine meanwhile: times are those in which the calling thread ran, without "
            "what it waited for"
        )
    return CpuReport("profiled", system=system, kernels=kernels, not_measured=tuple(notes))


def _step_rows(
    phases: Phases, places: Mapping[PhaseSample, CodePlace], *, is_quiet: bool
) -> list[KernelTime]:
    total_us = sum(_step_us(step, phases, is_quiet=is_quiet) for step in phases.steps) or 1.0
    rows = [
        KernelTime(
            name=step.name,
            short_name=step.name.partition(" [")[0],
            count=step.calls / phases.calls,
            total_us=_step_us(step, phases, is_quiet=is_quiet),
            share=_step_us(step, phases, is_quiet=is_quiet) / total_us,
            owner=_owner(_samples_of(phases, at), places),
            module=module_of(step.name),
        )
        for at, step in enumerate(phases.steps)
    ]
    return sorted(rows, key=lambda row: -row.total_us)


def _function_rows(
    phases: Phases, places: Mapping[PhaseSample, CodePlace], *, is_quiet: bool
) -> list[KernelTime]:
    parts: dict[str, list[PhaseSample]] = {}
    for sample in phases.samples:
        parts.setdefault(places[sample].phase, []).append(sample)
    ticks = sum(sample.count for sample in phases.samples) or 1
    spent_us = phases.median_ns / 1e3 if is_quiet else phases.cpu_ns / phases.calls / 1e3
    rows: list[KernelTime] = []
    for phase, samples in parts.items():
        count = sum(sample.count for sample in samples)
        place = _hottest(samples, places)
        rows.append(
            KernelTime(
                name=phase,
                short_name=phase.rpartition("::")[2],
                count=1.0,
                total_us=spent_us * count / ticks,
                share=count / ticks,
                owner=place.owner,
                file=place.file,
                line=place.line,
            )
        )
    return sorted(rows, key=lambda row: -row.total_us)


def _modules(phases: Phases, *, is_quiet: bool) -> tuple[ModuleTime, ...]:
    return tuple(
        ModuleTime(
            path=module_of(step.name) or step.name,
            type="step",
            calls=step.calls / phases.calls,
            device_us=None,
            host_us=_step_us(step, phases, is_quiet=is_quiet),
        )
        for step in phases.steps[:_MOST_ROWS]
    )


def _step_profiles(
    phases: Phases, places: Mapping[PhaseSample, CodePlace], *, is_quiet: bool
) -> tuple[KernelProfile, ...]:
    spent_us = [_step_us(step, phases, is_quiet=is_quiet) for step in phases.steps]
    total_us = sum(spent_us) or 1.0
    order = sorted(range(len(spent_us)), key=lambda at: -spent_us[at])
    return tuple(
        KernelProfile(
            kernel=phases.steps[at].name,
            origin="instrumented",
            share=spent_us[at] / total_us,
            duration_us=phases.steps[at].median_ns / 1e3,
            answers=(hot_function(_samples_of(phases, at), places),),
        )
        for at in order[:_MOST_ROWS]
        if phases.steps[at].calls
    )


def _step_us(step: StepTime, phases: Phases, *, is_quiet: bool) -> float:
    """Microseconds of a forward. On a busy machine those in which the calling thread ran."""
    if not is_quiet:
        return step.cpu_ns / phases.calls / 1e3
    # Of a step that runs once in each forward the median, which short disturbances leave alone.
    return (step.median_ns if step.calls == phases.calls else step.total_ns / phases.calls) / 1e3


def _function_profiles(
    rows: Sequence[KernelTime], phases: Phases, places: Mapping[PhaseSample, CodePlace]
) -> tuple[KernelProfile, ...]:
    profiles: list[KernelProfile] = []
    for row in rows[:_LISTED]:
        mine = [sample for sample in phases.samples if places[sample].phase == row.name]
        profiles.append(
            KernelProfile(
                kernel=row.name,
                origin="sampled",
                share=row.share,
                duration_us=row.total_us,
                answers=(hot_function(mine, places),),
            )
        )
    return tuple(profiles)


def hot_function(samples: Sequence[PhaseSample], places: Mapping[PhaseSample, CodePlace]) -> KernelAnswer:
    """In which functions these samples lie, and whether threads wait for each other there."""
    by_function = _by_function(samples, places)
    ticks = by_function.total()
    if not ticks:
        return KernelAnswer(
            question="hot_function",
            verdict="unknown",
            is_problem=False,
            summary="It is too short for a sample.",
            reason="no sample lies in it",
        )
    first, count = by_function.most_common(1)[0]
    waiting = by_function[WAITING] / ticks
    mine = [sample for sample in samples if places[sample].function == first]
    place = _hottest(mine, places)
    evidence = tuple(
        Quantity(name=f"time in {name}", value=round(100.0 * part / ticks, 1), unit="%", origin="sampled")
        for name, part in by_function.most_common(_LISTED)
    )
    is_problem = waiting >= _WAITING_SHARE
    return KernelAnswer(
        question="hot_function",
        verdict="threads wait" if is_problem else first.rpartition("::")[2],
        is_problem=is_problem,
        summary=f"{waiting:.0%} of its time the calling thread waits for others."
        if is_problem
        else f"{count / ticks:.0%} of its time is spent in {first}.",
        evidence=evidence,
        saves_share=round(waiting, 4) if is_problem else None,
        action=_SHARE_WORK if is_problem else "",
        file=place.file,
        line=place.line,
    )


def _samples_of(phases: Phases, step: int) -> list[PhaseSample]:
    return [sample for sample in phases.samples if sample.step == step]


def _by_function(samples: Sequence[PhaseSample], places: Mapping[PhaseSample, CodePlace]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for sample in samples:
        counts[places[sample].function] += sample.count
    return counts


def _hottest(samples: Sequence[PhaseSample], places: Mapping[PhaseSample, CodePlace]) -> CodePlace:
    """The place with most of the samples."""
    counts: Counter[CodePlace] = Counter()
    for sample in samples:
        counts[places[sample]] += sample.count
    return counts.most_common(1)[0][0]


def _owner(samples: Sequence[PhaseSample], places: Mapping[PhaseSample, CodePlace]) -> TimeOwner:
    """Whose most of the samples are; waiting belongs to whoever waits."""
    counts: Counter[TimeOwner] = Counter()
    for sample in samples:
        if places[sample].function != WAITING:
            counts[places[sample].owner] += sample.count
    return counts.most_common(1)[0][0] if counts else "own"
