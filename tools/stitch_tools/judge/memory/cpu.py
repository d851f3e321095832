"""The CPU's sanitizers: the program rebuilt with each, and run by a host that holds nothing else."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stitch_tools.compile.build import plan_build, run_recipe, sources_of
from stitch_tools.compile.host_build import build_sanitizer_host
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.memory.archer import AT_WORK, Archer, calls_openmp, find_archer
from stitch_tools.judge.memory.case import SanitizerCase
from stitch_tools.judge.memory.frames import FRAME_FORMAT, Owner
from stitch_tools.judge.memory.reports import address_findings, thread_findings, undefined_findings
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
_BUILD_LIMIT_S = 300.0

# Level 1 keeps the code near its source, so that a report names the right line; the instruction set stays.
# The runtime's names are found when the program is loaded into its host: a linker must not want them defined.
_REPLACED = {"-O3": "-O1", "-Wl,-z,defs": ""}
# Go on after a report: the first defect must not hide the others.
_FLAGS = {
    ADDRESS_AND_UNDEFINED: ("-fsanitize=address,undefined", "-fsanitize-recover=address,undefined"),
    THREAD: ("-fsanitize=thread",),
}


def run_cpu(case: SanitizerCase, tools: Sequence[SanitizerTool]) -> Iterator[SanitizerRun]:
    """What the tools saw on one draw; a tool whose run did not finish is `not_checked`."""
    for group, run_group in ((_MEMORY_TOOLS, _memory), (_THREAD_TOOLS, _threads)):
        wanted: list[SanitizerTool] = [tool for tool in group if tool in tools]
        if not wanted:
            continue
        case.trial.say(f"building and running it under {', '.join(wanted)}")
        try:
            runs = run_group(case)
        except EnvironmentMissingError as error:
            runs = [case.not_checked(tool, error.message) for tool in wanted]
        yield from (run for run in runs if run.tool in wanted)


@dataclass(frozen=True)
class _Outputs:
    """One execution with the outputs of each of its calls."""

    execution: Execution
    calls: list[list[bytes]]


@dataclass(frozen=True)
class _Rebuilt:
    """A program that was built with sanitizers, and how it runs in a host that was built so, too."""

    case: SanitizerCase
    sanitizers: str
    artifact: str
    libraries: tuple[str, ...]

    @property
    def owner(self) -> Owner:
        """Whose code is the program's."""
        return Owner(self.artifact, tuple(file.path for file in self.case.trial.program.files))

    def run(
        self,
        env: Mapping[str, str],
        *,
        archer: Archer | None = None,
        threads: int | None = None,
        poison: int = _FIRST_POISON,
        calls: int = 1,
        spent_s: float = 0.0,
    ) -> _Outputs:
        """The outputs in its host. The runs of one tool share its limit, of which `spent_s` are gone."""
        case, session = self.case, self.case.trial.session
        host = build_sanitizer_host(self.sanitizers, case.options.cache_dir)
        # Loaded before the program, Archer's runtime is found by the program's calls of GNU's.
        loaded = (*((str(archer.runtime),) if archer else ()), *self.libraries)
        threads = session.threads if threads is None else threads
        job = case.host_job(self.artifact, loaded, poison=poison, threads=threads, calls=calls)
        with os.fdopen(os.memfd_create("stitch-outputs", os.MFD_CLOEXEC), "rb") as outputs:
            execution = execute(
                session,
                (str(host), "job", "{0}", "{1}", "{2}"),
                files={"job": job},
                env=env,
                fds=(*case.fds, outputs.fileno()),
                readable=(host, *map(Path, (self.artifact, *loaded)), *((archer.tool,) if archer else ())),
                limit_s=max(_SHORTEST_S, case.options.limit_s - spent_s),
            )
            outputs.seek(0)
            written = io.BytesIO(outputs.read())
        # What a program forges here is at most as much as it wrote.
        rows = [line.split()[2:] for line in execution.stdout.splitlines() if line.startswith("outputs ")]
        sizes = [[int(word) if word.isdecimal() and len(word) < 16 else 0 for word in row] for row in rows]
        return _Outputs(execution, [[written.read(size) for size in row] for row in sizes])


def _rebuild(case: SanitizerCase, sanitizers: str) -> _Rebuilt:
    """The program built with these sanitizers by its own recipe.

    Raises:
        EnvironmentMissingError: it cannot be built so on this machine.
    """
    program, store = case.trial.program, case.trial.store
    prefixes = (case.trial.session.interpreter.prefix,)
    recipe = plan_build(program, sources_of(program, store), prefixes=prefixes)
    words = [word for word in (_REPLACED.get(word, word) for word in recipe.command) if word]
    compiler = len(recipe.compiler.command)
    # Other flags are another cache key: nobody loads such a build by mistake.
    flags = ("-g1", "-fno-omit-frame-pointer", "-w", *_FLAGS[sanitizers])
    recipe = replace(recipe, command=(*words[:compiler], *flags, *words[compiler:]))
    build = run_recipe(recipe, store, cache_dir=case.options.cache_dir, time_limit_s=_BUILD_LIMIT_S)
    if build.artifact is None:
        first = next((row.message for row in build.diagnostics), "no message")
        raise EnvironmentMissingError(
            f"the program does not build with -fsanitize={sanitizers}: {first}",
            hint="install the compiler's sanitizer runtimes",
        )
    return _Rebuilt(case, sanitizers, build.artifact, build.libraries)


def _memory(case: SanitizerCase) -> list[SanitizerRun]:
    """Address and undefined-behavior sanitizers in one build; its two poisons also show what nobody wrote."""
    program = _rebuild(case, ADDRESS_AND_UNDEFINED)
    first = _run_memory(program, _FIRST_POISON)
    execution = first.execution
    addresses = address_findings(execution.text, program.owner)
    if addresses.own:
        init = case.not_checked("init", "memory errors come first")
    elif not execution.done:
        init = case.not_done("init", execution)
    else:
        init = _initialised(program, first)
    return [
        case.concluded("asan", addresses, execution),
        case.concluded("ubsan", undefined_findings(execution.text, program.owner), execution),
        init,
    ]


def _initialised(program: _Rebuilt, first: _Outputs) -> SanitizerRun:
    """Whether outputs depend on what memory held before: runs over different bytes, compared bitwise."""
    case = program.case
    varies = case.not_checked("init", "two calls on equal inputs and memory differ bitwise")
    if len(first.calls) != 2 or first.calls[0] != first.calls[1]:
        return varies
    seen, wall_s = [first], first.execution.wall_s
    # A difference counts only where the first bytes give the first outputs again.
    for poison in (_OTHER_POISON, _FIRST_POISON):
        other = _run_memory(program, poison, spent_s=wall_s)
        wall_s += other.execution.wall_s
        if not other.execution.done:
            return case.not_done("init", other.execution, wall_s)
        seen.append(other)
        if poison == _OTHER_POISON and other.calls == first.calls:
            return SanitizerRun(tool="init", status="clean", inputs=case.inputs.kind, wall_s=wall_s)
    if seen[2].calls != first.calls:
        return varies
    message = _difference(first.calls[0], seen[1].calls[0] if seen[1].calls else [])
    finding = SanitizerFinding(rule="uninitialised-output", severity="fatal", message=message)
    return SanitizerRun(
        tool="init", status="findings", findings=(finding,), inputs=case.inputs.kind, wall_s=wall_s
    )


def _difference(first: Sequence[bytes], other: Sequence[bytes]) -> str:
    pairs = enumerate(zip(first, other, strict=False))
    number, (left, right) = next((row for row in pairs if row[1][0] != row[1][1]), (0, (b"", b"")))
    same = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0)
    return (
        f"output {number} depends on memory that nobody wrote: it differs from byte {same} on "
        "when outputs, workspace and heap hold other bytes before the call"
    )


def _run_memory(program: _Rebuilt, poison: int, *, spent_s: float = 0.0) -> _Outputs:
    options = (
        "detect_leaks=0",  # needs ptrace, which the sandbox refuses; a handle may live until the end
        "halt_on_error=0",
        "detect_stack_use_after_return=1",
        "max_malloc_fill_size=1073741824",
        f"malloc_fill_byte={poison}",
        f"log_path={REPORTS}",
        f"stack_trace_format='{FRAME_FORMAT}'",
    )
    # The summary names the kind of undefined behaviour.
    undefined = "print_stacktrace=1:print_summary=1:report_error_type=1"
    env = {
        "ASAN_OPTIONS": ":".join(options),
        "UBSAN_OPTIONS": f"{undefined}:stack_trace_format='{FRAME_FORMAT}'",
    }
    return program.run(env, poison=poison, calls=2, spent_s=spent_s)


def _threads(case: SanitizerCase) -> list[SanitizerRun]:
    """ThreadSanitizer, with OpenMP by a runtime whose order it sees."""
    program = _rebuild(case, THREAD)
    options = (
        f"halt_on_error=0:exitcode=0:report_thread_leaks=0:ignore_noninstrumented_modules=1:log_path={REPORTS}"
        f":stack_trace_format='{FRAME_FORMAT}'"
    )
    env = {"TSAN_OPTIONS": options, "OMP_NUM_THREADS": str(_RACE_THREADS)}
    archer = None
    if calls_openmp(Path(program.artifact)):
        archer = find_archer((case.trial.session.interpreter.prefix,))
        env |= {"OMP_TOOL_LIBRARIES": str(archer.tool), "ARCHER_OPTIONS": "verbose=1"}
    execution = program.run(env, archer=archer, threads=_RACE_THREADS).execution
    findings = thread_findings(execution.text, program.owner)
    if archer is not None and findings.own and AT_WORK not in execution.stdout:
        # Without Archer every loop looks like a race, and a race is fatal.
        return [case.not_checked("tsan", "Archer was not loaded into OpenMP's runtime")]
    return [case.concluded("tsan", findings, execution)]
