"""The CPU's sanitizers: the program rebuilt with each, and run by a host that holds nothing else."""

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from stitch_tools.compile.build import plan_build, run_recipe, sources_of
from stitch_tools.compile.host_build import build_sanitizer_host
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.memory.archer import AT_WORK, Archer, calls_openmp, find_archer
from stitch_tools.judge.memory.conclude import concluded, not_checked
from stitch_tools.judge.memory.frames import FRAME_FORMAT, Owner
from stitch_tools.judge.memory.job import host_job
from stitch_tools.judge.memory.material import Material
from stitch_tools.judge.memory.options import SanitizeOptions
from stitch_tools.judge.memory.reports import (
    Findings,
    address_findings,
    thread_findings,
    undefined_findings,
)
from stitch_tools.judge.trial import Trial
from stitch_tools.models import Build
from stitch_tools.models.sanitizer import SanitizerFinding, SanitizerRun, SanitizerTool
from stitch_tools.run.tool_process import REPORTS, Execution, execute

_MEMORY_TOOLS: tuple[SanitizerTool, ...] = ("asan", "ubsan", "init")
_THREAD_TOOLS: tuple[SanitizerTool, ...] = ("tsan",)
CPU_TOOLS: tuple[SanitizerTool, ...] = (*_MEMORY_TOOLS, *_THREAD_TOOLS)
ADDRESS_AND_UNDEFINED, THREAD = "address,undefined", "thread"
# NaN in every float format, and a number that no maximum swallows: 8.7e8 as fp32, 3.8e69 as fp64.
_FIRST_POISON, _OTHER_POISON = 0xFF, 0x4E
_RACE_THREADS = 4
_SHORTEST_S = 0.5


# Level 1 keeps the code near its source, so that a report names the right line; the instruction set stays.
# The runtime's names are found when the program is loaded into its host: a linker must not want them defined.
_REPLACED = {"-O3": "-O1", "-Wl,-z,defs": ""}
# Go on after a report: the first defect must not hide the others.
_FLAGS = {
    ADDRESS_AND_UNDEFINED: ("-fsanitize=address,undefined", "-fsanitize-recover=address,undefined"),
    THREAD: ("-fsanitize=thread",),
}


@dataclass(frozen=True)
class _Case:
    """What the runs of one program on one draw share."""

    trial: Trial
    options: SanitizeOptions
    material: Material

    def rebuilt(self, sanitizers: str) -> tuple[Build, str]:
        """The program built with these sanitizers by its own recipe, and the path of what came out.

        Raises:
            EnvironmentMissingError: it cannot be built so on this machine.
        """
        program, store = self.trial.program, self.trial.store
        prefixes = (self.trial.session.interpreter.prefix,)
        recipe = plan_build(program, sources_of(program, store), prefixes=prefixes)
        words = [word for word in (_REPLACED.get(word, word) for word in recipe.command) if word]
        compiler = len(recipe.compiler.command)
        # Other flags are another cache key: nobody loads such a build by mistake.
        flags = ("-g1", "-fno-omit-frame-pointer", "-w", *_FLAGS[sanitizers])
        recipe = replace(recipe, command=(*words[:compiler], *flags, *words[compiler:]))
        build = run_recipe(
            recipe, store, cache_dir=self.options.cache_dir, time_limit_s=self.options.build_limit_s
        )
        if build.artifact is None:
            first = next((row.message for row in build.diagnostics), "no message")
            raise EnvironmentMissingError(
                f"the program does not build with -fsanitize={sanitizers}: {first}",
                hint="install the compiler's sanitizer runtimes",
            )
        return build, build.artifact

    def owner(self, artifact: str) -> Owner:
        """Whose code is the program's."""
        return Owner(artifact, tuple(file.path for file in self.trial.program.files))

    def unknown(self, tool: SanitizerTool, reason: str, wall_s: float | None = None) -> SanitizerRun:
        """The run of a tool that says nothing on this draw."""
        return not_checked(tool, reason, self.material.kind, wall_s)

    def concluded(self, tool: SanitizerTool, findings: Findings, execution: Execution) -> SanitizerRun:
        """The run of a tool whose report was read."""
        return concluded(tool, findings, execution, self.material.kind, self.options.limit_s)


def run_cpu(
    trial: Trial, options: SanitizeOptions, tools: Sequence[SanitizerTool], material: Material
) -> Iterator[SanitizerRun]:
    """What the tools saw on one draw; a tool whose run did not finish is `not_checked`."""
    case = _Case(trial, options, material)
    for group, run_group in ((_MEMORY_TOOLS, _memory), (_THREAD_TOOLS, _threads)):
        wanted: list[SanitizerTool] = [tool for tool in group if tool in tools]
        if not wanted:
            continue
        trial.say(f"building and running it under {', '.join(wanted)}")
        try:
            runs = run_group(case)
        except EnvironmentMissingError as error:
            runs = [case.unknown(tool, error.message) for tool in wanted]
        yield from (run for run in runs if run.tool in wanted)


@dataclass(frozen=True)
class _Outputs:
    """One execution with the bytes that it gave."""

    execution: Execution
    calls: tuple[bytes, ...]
    """The outputs of each call, one after another."""
    sizes: tuple[int, ...]
    """Bytes of each output of one call."""


def _memory(case: _Case) -> list[SanitizerRun]:
    """Address and undefined-behavior sanitizers in one build; its two poisons also show what nobody wrote."""
    build, artifact = case.rebuilt(ADDRESS_AND_UNDEFINED)
    first = _run_memory(case, build, _FIRST_POISON)
    owner, execution = case.owner(artifact), first.execution
    addresses = address_findings(execution.text, owner)
    if addresses.own:
        init = case.unknown("init", "memory errors come first")
    elif not execution.done:
        init = case.unknown("init", execution.why_not_done(case.options.limit_s))
    else:
        init = _initialised(case, build, first)
    return [
        case.concluded("asan", addresses, execution),
        case.concluded("ubsan", undefined_findings(execution.text, owner), execution),
        init,
    ]


def _initialised(case: _Case, build: Build, first: _Outputs) -> SanitizerRun:
    """Whether outputs depend on what memory held before: runs over different bytes, compared bitwise."""
    varies = case.unknown("init", "two calls on equal inputs and memory differ bitwise")
    if len(first.calls) != 2 or first.calls[0] != first.calls[1]:
        return varies
    seen, wall_s = [first], first.execution.wall_s
    # A difference counts only where the first bytes give the first outputs again.
    for poison in (_OTHER_POISON, _FIRST_POISON):
        other = _run_memory(case, build, poison, spent_s=wall_s)
        wall_s += other.execution.wall_s
        if not other.execution.done:
            return case.unknown("init", other.execution.why_not_done(case.options.limit_s), wall_s)
        seen.append(other)
        if poison == _OTHER_POISON and other.calls == first.calls:
            return SanitizerRun(tool="init", status="clean", inputs=case.material.kind, wall_s=wall_s)
    if seen[2].calls != first.calls:
        return varies
    message = _difference(first, seen[1])
    finding = SanitizerFinding(rule="uninitialised-output", severity="fatal", message=message)
    return SanitizerRun(
        tool="init", status="findings", findings=(finding,), inputs=case.material.kind, wall_s=wall_s
    )


def _difference(first: _Outputs, other: _Outputs) -> str:
    left, right = first.calls[0], other.calls[0] if other.calls else b""
    position = next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    ends = list(accumulate(first.sizes))
    number = next((i for i, end in enumerate(ends) if position < end), len(ends) - 1)
    start = ends[number] - first.sizes[number]
    return (
        f"output {number} depends on memory that nobody wrote: it differs from byte {position - start} on "
        "when outputs, workspace and heap hold other bytes before the call"
    )


def _run_memory(case: _Case, build: Build, poison: int, *, spent_s: float = 0.0) -> _Outputs:
    options = ":".join(
        (
            "detect_leaks=0",  # needs ptrace, which the sandbox refuses; a handle may live until the end
            "halt_on_error=0",
            "detect_stack_use_after_return=1",
            "max_malloc_fill_size=1073741824",
            f"malloc_fill_byte={poison}",
            f"log_path={REPORTS}",
            f"stack_trace_format='{FRAME_FORMAT}'",
        )
    )
    env = {
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": f"print_stacktrace=1:stack_trace_format='{FRAME_FORMAT}'",
    }
    host = build_sanitizer_host(ADDRESS_AND_UNDEFINED, case.options.cache_dir)
    return _run_host(case, build, host, env, poison=poison, calls=2, spent_s=spent_s)


def _threads(case: _Case) -> list[SanitizerRun]:
    """ThreadSanitizer, with OpenMP by a runtime whose order it sees."""
    build, artifact = case.rebuilt(THREAD)
    options = (
        f"halt_on_error=0:exitcode=0:report_thread_leaks=0:ignore_noninstrumented_modules=1:log_path={REPORTS}"
        f":stack_trace_format='{FRAME_FORMAT}'"
    )
    env = {"TSAN_OPTIONS": options, "OMP_NUM_THREADS": str(_RACE_THREADS)}
    archer = None
    if calls_openmp(Path(artifact)):
        archer = find_archer((case.trial.session.interpreter.prefix,))
        env |= {"OMP_TOOL_LIBRARIES": str(archer.tool), "ARCHER_OPTIONS": "verbose=1"}
    host = build_sanitizer_host(THREAD, case.options.cache_dir)
    execution = _run_host(case, build, host, env, archer=archer, threads=_RACE_THREADS).execution
    findings = thread_findings(execution.text, case.owner(artifact))
    if archer is not None and findings.own and AT_WORK not in execution.stdout:
        # Without Archer every loop looks like a race, and a race is fatal.
        return [case.unknown("tsan", "Archer was not loaded into OpenMP's runtime")]
    return [case.concluded("tsan", findings, execution)]


def _run_host(
    case: _Case,
    build: Build,
    host: Path,
    env: dict[str, str],
    *,
    archer: Archer | None = None,
    threads: int | None = None,
    poison: int = _FIRST_POISON,
    calls: int = 1,
    spent_s: float = 0.0,
) -> _Outputs:
    """The build's outputs in its host. The runs of one tool share its limit, of which `spent_s` are gone."""
    material, session, artifact = case.material, case.trial.session, build.artifact or ""
    # Loaded before the program, Archer's runtime is found by the program's calls of GNU's.
    loaded = (*((str(archer.runtime),) if archer else ()), *build.libraries)
    job = host_job(
        artifact,
        device="cpu",
        libraries=loaded,
        parameters=material.weights.parameters,
        inputs=material.inputs.manifest,
        state=material.updated,
        threads=session.threads if threads is None else threads,
        poison=poison,
        calls=calls,
    )
    outputs = os.memfd_create("stitch-outputs", os.MFD_CLOEXEC)
    try:
        execution = execute(
            session,
            (str(host), "job", "{0}", "{1}", "{2}"),
            files={"job": job},
            env=env,
            fds=(*material.fds, outputs),
            readable=(host, Path(artifact), *map(Path, loaded), *((archer.tool,) if archer else ())),
            limit_s=max(_SHORTEST_S, case.options.limit_s - spent_s),
        )
        return _read_outputs(execution, outputs)
    finally:
        os.close(outputs)


def _read_outputs(execution: Execution, outputs: int) -> _Outputs:
    """The calls' outputs, split as the host says."""
    rows = [
        tuple(map(int, line.split()[2:]))
        for line in execution.stdout.splitlines()
        if line.startswith("outputs ") and all(word.isdigit() and len(word) < 16 for word in line.split()[1:])
    ]
    size = os.fstat(outputs).st_size
    if not rows or not size or sum(map(sum, rows)) != size:
        return _Outputs(execution, tuple(b"" for _ in rows), rows[0] if rows else ())
    calls: list[bytes] = []
    with mmap.mmap(outputs, size, access=mmap.ACCESS_READ) as memory:
        start = 0
        for row in rows:
            calls.append(memory[start : start + sum(row)])
            start += sum(row)
    return _Outputs(execution, tuple(calls), rows[0])
