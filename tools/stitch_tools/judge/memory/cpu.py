"""The CPU's sanitizers: the program rebuilt with each, and run by a host that holds nothing else."""

import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from stitch_tools.compile.host_build import build_sanitizer_host
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.memory.archer import AT_WORK, calls_openmp, find_archer
from stitch_tools.judge.memory.builds import ADDRESS_AND_UNDEFINED, THREAD, sanitized_build
from stitch_tools.judge.memory.conclude import concluded, not_checked
from stitch_tools.judge.memory.frames import FRAME_FORMAT, Owner
from stitch_tools.judge.memory.job import host_job
from stitch_tools.judge.memory.material import Material
from stitch_tools.judge.memory.reports import address_findings, thread_findings, undefined_findings
from stitch_tools.models import Build, Program
from stitch_tools.models.sanitizer import SanitizerFinding, SanitizerRun, SanitizerTool
from stitch_tools.run.session import TargetSession
from stitch_tools.run.tool_process import REPORTS, Execution, execute
from stitch_tools.storage.store import Store

CPU_TOOLS: tuple[SanitizerTool, ...] = ("asan", "ubsan", "init", "tsan")
# NaN in every float format, and a number that no maximum swallows: 8.7e8 as fp32, 3.8e69 as fp64.
_FIRST_POISON, _OTHER_POISON = 0xFF, 0x4E
_RACE_THREADS = 4
_SHORTEST_S = 0.5


@dataclass(frozen=True)
class CpuBench:
    """What the runs of one program share."""

    program: Program
    build: Build
    session: TargetSession
    store: Store
    cache_dir: Path | None
    prefixes: Sequence[Path]
    limit_s: float
    build_limit_s: float

    def with_less(self, spent_s: float) -> "CpuBench":
        """The same with the time that is left: the runs of one tool share its limit."""
        return replace(self, limit_s=max(_SHORTEST_S, self.limit_s - spent_s))

    def rebuilt(self, sanitizers: str) -> Build:
        """The program with these sanitizers.

        Raises:
            EnvironmentMissingError: it cannot be built so on this machine.
        """
        build = sanitized_build(
            self.program,
            self.store,
            sanitizers,
            cache_dir=self.cache_dir,
            time_limit_s=self.build_limit_s,
            prefixes=self.prefixes,
        )
        if build.artifact is None:
            first = next((row.message for row in build.diagnostics), "no message")
            raise EnvironmentMissingError(
                f"the program does not build with -fsanitize={sanitizers}: {first}",
                hint="install the compiler's sanitizer runtimes",
            )
        return build

    def owner(self, artifact: str) -> Owner:
        """Whose code is the program's."""
        return Owner(artifact, tuple(file.path for file in self.program.files))


def run_cpu(
    bench: CpuBench, tools: Sequence[SanitizerTool], material: Material
) -> dict[SanitizerTool, SanitizerRun]:
    """What the tools saw on one draw; a tool whose run did not finish is `not_checked`."""
    found: dict[SanitizerTool, SanitizerRun] = {}
    if {"asan", "ubsan", "init"} & set(tools):
        found |= _guarded(lambda: _memory(bench, material), ("asan", "ubsan", "init"), material.kind)
    if "tsan" in tools:
        found |= _guarded(lambda: _threads(bench, material), ("tsan",), material.kind)
    return {tool: run for tool, run in found.items() if tool in tools}


def _guarded(
    work: Callable[[], dict[SanitizerTool, SanitizerRun]], tools: Sequence[SanitizerTool], kind: str
) -> dict[SanitizerTool, SanitizerRun]:
    try:
        return work()
    except EnvironmentMissingError as error:
        return {tool: not_checked(tool, error.message, kind) for tool in tools}


@dataclass(frozen=True)
class _Outputs:
    """One execution with the bytes that it gave."""

    execution: Execution
    calls: tuple[bytes, ...]
    """The outputs of each call, one after another."""
    sizes: tuple[int, ...]
    """Bytes of each output of one call."""


def _memory(bench: CpuBench, material: Material) -> dict[SanitizerTool, SanitizerRun]:
    """Address and undefined-behavior sanitizers in one build; its two poisons also show what nobody wrote."""
    build = bench.rebuilt(ADDRESS_AND_UNDEFINED)
    artifact = build.artifact or ""
    first = _run_memory(bench, material, build, _FIRST_POISON)
    owner, text = bench.owner(artifact), first.execution.text
    addresses, undefined = address_findings(text, owner), undefined_findings(text, owner)
    kind, limit_s = material.kind, bench.limit_s
    found: dict[SanitizerTool, SanitizerRun] = {
        "asan": concluded("asan", addresses, first.execution, kind, limit_s),
        "ubsan": concluded("ubsan", undefined, first.execution, kind, limit_s),
    }
    if addresses.own:
        found["init"] = not_checked("init", "memory errors come first", kind)
    elif not first.execution.done:
        found["init"] = not_checked("init", first.execution.why_not_done(limit_s), kind)
    else:
        found["init"] = _initialised(bench, material, build, first)
    return found


def _initialised(bench: CpuBench, material: Material, build: Build, first: _Outputs) -> SanitizerRun:
    """Whether outputs depend on what memory held before: two runs over different bytes, compared bitwise."""
    varies = not_checked("init", "two calls on equal inputs and memory differ bitwise", material.kind)
    if len(first.calls) != 2 or first.calls[0] != first.calls[1]:
        return varies
    other = _run_memory(bench.with_less(first.execution.wall_s), material, build, _OTHER_POISON)
    wall_s = first.execution.wall_s + other.execution.wall_s
    if not other.execution.done:
        return not_checked("init", other.execution.why_not_done(bench.limit_s), material.kind, wall_s)
    if other.calls == first.calls:
        return SanitizerRun(tool="init", status="clean", inputs=material.kind, wall_s=wall_s)
    again = _run_memory(bench.with_less(wall_s), material, build, _FIRST_POISON)
    if not again.execution.done:
        return not_checked("init", again.execution.why_not_done(bench.limit_s), material.kind, wall_s)
    if again.calls != first.calls:
        return varies
    finding = SanitizerFinding(
        rule="uninitialised-output", severity="fatal", message=_difference(first, other)
    )
    return SanitizerRun(
        tool="init", status="findings", findings=(finding,), inputs=material.kind, wall_s=wall_s
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


def _run_memory(bench: CpuBench, material: Material, build: Build, poison: int) -> _Outputs:
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
    host = build_sanitizer_host(ADDRESS_AND_UNDEFINED, bench.cache_dir)
    return _run_host(bench, material, build, host, env, poison=poison, calls=2)


def _threads(bench: CpuBench, material: Material) -> dict[SanitizerTool, SanitizerRun]:
    """ThreadSanitizer, with OpenMP by a runtime whose order it sees."""
    build = bench.rebuilt(THREAD)
    artifact = Path(build.artifact or "")
    options = (
        f"halt_on_error=0:exitcode=0:report_thread_leaks=0:ignore_noninstrumented_modules=1:log_path={REPORTS}"
        f":stack_trace_format='{FRAME_FORMAT}'"
    )
    env = {"TSAN_OPTIONS": options, "OMP_NUM_THREADS": str(_RACE_THREADS)}
    libraries: tuple[str, ...] = ()
    readable: tuple[Path, ...] = ()
    if calls_openmp(artifact):
        archer = find_archer(bench.prefixes)
        # Loaded before the program, it is found by the program's calls of GNU's runtime.
        libraries, readable = (str(archer.runtime),), (archer.tool,)
        env |= {"OMP_TOOL_LIBRARIES": str(archer.tool), "ARCHER_OPTIONS": "verbose=1"}
    host = build_sanitizer_host(THREAD, bench.cache_dir)
    ran = _run_host(
        bench, material, build, host, env, libraries=libraries, readable=readable, threads=_RACE_THREADS
    )
    found = thread_findings(ran.execution.text, bench.owner(str(artifact)))
    if libraries and found.own and AT_WORK not in ran.execution.stdout:
        # Without Archer every loop looks like a race, and a race is fatal.
        return {"tsan": not_checked("tsan", "Archer was not loaded into OpenMP's runtime", material.kind)}
    return {"tsan": concluded("tsan", found, ran.execution, material.kind, bench.limit_s)}


def _run_host(
    bench: CpuBench,
    material: Material,
    build: Build,
    host: Path,
    env: dict[str, str],
    *,
    libraries: Sequence[str] = (),
    readable: Sequence[Path] = (),
    threads: int | None = None,
    poison: int = _FIRST_POISON,
    calls: int = 1,
) -> _Outputs:
    loaded = (*libraries, *build.libraries)
    job = host_job(
        build.artifact or "",
        device="cpu",
        libraries=loaded,
        parameters=material.weights.parameters,
        inputs=material.inputs.manifest,
        state=material.updated,
        threads=bench.session.threads if threads is None else threads,
        poison=poison,
        calls=calls,
    )
    with ExitStack() as stack:
        outputs = os.memfd_create("stitch-outputs", os.MFD_CLOEXEC)
        stack.callback(os.close, outputs)
        execution = execute(
            bench.session,
            (str(host), "job", "{0}", "{1}", "{2}"),
            files={"job": job},
            env=env,
            fds=(*material.fds, outputs),
            readable=(host, Path(build.artifact or ""), *map(Path, loaded), *readable),
            limit_s=bench.limit_s,
        )
        return _read_outputs(execution, outputs)


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
