"""The kernel level of a profile: runs a program under ncu and turns what ncu counted into answers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from stitch_tools.models.graph import Ceilings
from stitch_tools.models.profile import (
    BoundBy,
    KernelProfile,
    KernelQuestion,
    ProfilerTool,
    ProfileStatus,
    Quantity,
    RooflinePoint,
)
from stitch_tools.profile import ncu_metrics as m
from stitch_tools.profile.answers import kernel_occupancy, measured, share
from stitch_tools.profile.ncu import RAW, SOURCE, Ncu, NcuRequest, refusal, script, unknown_metrics
from stitch_tools.profile.ncu_report import NcuKernel, parse_ncu
from stitch_tools.profile.own_paths import own_path
from stitch_tools.profile.ownership import short_name
from stitch_tools.profile.permission import ALLOW_COUNTERS
from stitch_tools.profile.questions import ALL_METRICS, ask
from stitch_tools.profile.source_lines import HotLine, LineFigure, hot_lines
from stitch_tools.run.tool_process import Execution

_RUN_LIMIT_S = 60.0
_MOST_RETRIES = 2
_LISTED = ((m.SM, "SM throughput"), (m.MEMORY, "memory throughput"), (m.DRAM, "DRAM throughput"))


class RunUnderTool(Protocol):
    """Runs the profiled program behind a tool's words, in a fresh confined process."""

    def __call__(self, words: Sequence[str], *, readable: Sequence[Path], limit_s: float) -> Execution:
        """How the run ended; files whose names begin with `report` come back with it."""
        ...


@dataclass(frozen=True)
class KernelReport:
    """What the kernel level gave, or why it gave nothing."""

    status: ProfileStatus
    message: str = ""
    kernels: tuple[KernelProfile, ...] = ()
    tools: tuple[ProfilerTool, ...] = ()
    not_measured: tuple[str, ...] = ()
    wall_s: float | None = None


def profile_kernels(
    ncu: Ncu,
    run: RunUnderTool,
    *,
    questions: Iterable[KernelQuestion] | None = None,
    kernels: Sequence[str] = (),
    files: Sequence[str] = (),
    ceilings: Ceilings | None = None,
    limit_s: float = _RUN_LIMIT_S,
    emit: Callable[[str], None] | None = None,
) -> KernelReport:
    """The answers about a program's kernels, in one run of ncu.

    Args:
        ncu: from `find_ncu`.
        run: runs the program; one iteration of it lies between cuProfilerStart and cuProfilerStop.
        questions: which are asked; None is all.
        kernels: bare names of the kernels to look at; () is all.
        files: the program's own paths, by which source lines are named.
        ceilings: the device's measured limits, for the roofline.
        limit_s: of the run.
        emit: progress for people.
    """
    asked = None if questions is None else tuple(questions)
    metrics = ALL_METRICS if asked is None else m.metrics_of(asked)
    request = NcuRequest(metrics, kernels=kernels, launches=1, of_each=True)
    tools = (ProfilerTool(name="ncu", version=ncu.version),)
    if emit is not None:
        emit(f"counting with ncu {ncu.version}".rstrip())
    execution, left_out = _run(ncu, run, request, limit_s)
    output = f"{execution.stdout}\n{execution.stderr}"
    rows = parse_ncu(execution.reports.get(RAW, ""))
    not_measured = tuple(f"this ncu or device does not know the metric {name}" for name in left_out)
    if not rows:
        status, message = _outcome(execution, output, limit_s)
        why = f"{message}: {ALLOW_COUNTERS}" if status == "permission_denied" else message
        return KernelReport(
            status, message, tools=tools, not_measured=(why, *not_measured), wall_s=execution.wall_s
        )
    lines = hot_lines(execution.reports.get(SOURCE, ""))
    return KernelReport(
        "profiled",
        kernels=kernel_profiles(rows, asked, lines=lines, files=files, ceilings=ceilings),
        tools=tools,
        not_measured=not_measured,
        wall_s=execution.wall_s,
    )


def kernel_profiles(
    rows: Sequence[NcuKernel],
    asked: Sequence[KernelQuestion] | None = None,
    *,
    lines: Mapping[str, Mapping[LineFigure, HotLine]] | None = None,
    files: Sequence[str] = (),
    ceilings: Ceilings | None = None,
) -> tuple[KernelProfile, ...]:
    """One profile a kernel, of its longest launch; the kernel with the most time comes first.

    Args:
        rows: launches from `parse_ncu`.
        asked: questions; None is all.
        lines: from `hot_lines`.
        files: the program's own paths.
        ceilings: the device's measured limits.
    """
    longest: dict[str, NcuKernel] = {}
    spent_us: dict[str, float] = {}
    for row in rows:
        duration_us = row.duration_us or 0.0
        spent_us[row.name] = spent_us.get(row.name, 0.0) + duration_us
        if row.name not in longest or duration_us > (longest[row.name].duration_us or 0.0):
            longest[row.name] = row
    total_us = sum(spent_us.values())
    profiles: list[KernelProfile] = []
    for name in sorted(longest, key=lambda name: -spent_us[name]):
        mine = _lines_of(name, lines or {}, files)
        part = spent_us[name] / total_us if total_us else None
        profiles.append(_profile(longest[name], asked, mine, part, ceilings))
    return tuple(profiles)


def _profile(
    kernel: NcuKernel,
    asked: Sequence[KernelQuestion] | None,
    lines: Mapping[LineFigure, HotLine],
    part: float | None,
    ceilings: Ceilings | None,
) -> KernelProfile:
    theoretical = kernel_occupancy(kernel)
    registers, achieved = kernel.get(m.REGISTERS), kernel.get(m.WARPS_ACTIVE)
    shared = [kernel.get(name) for name in (m.SHARED_STATIC, m.SHARED_DYNAMIC)]
    return KernelProfile(
        kernel=kernel.name,
        origin="ncu",
        share=part,
        duration_us=kernel.duration_us,
        grid=kernel.grid,
        block=kernel.block,
        registers=None if registers is None else int(registers),
        shared_bytes=None if None in shared else int(sum(size or 0.0 for size in shared)),
        theoretical_occupancy=None if theoretical is None else round(theoretical.share, 4),
        achieved_occupancy=None if achieved is None else round(achieved / 100.0, 4),
        answers=ask(kernel, asked, lines),
        roofline=_roofline(kernel, ceilings),
        metrics=_listed(kernel),
    )


def _listed(kernel: NcuKernel) -> tuple[Quantity, ...]:
    values = ((name, kernel.get(metric)) for metric, name in _LISTED)
    return tuple(measured(name, value, "%") for name, value in values if value is not None)


def _roofline(kernel: NcuKernel, ceilings: Ceilings | None) -> RooflinePoint | None:
    duration_us = kernel.duration_us
    moved = [kernel.get(metric) for metric in (m.DRAM_READ_BYTES, m.DRAM_WRITE_BYTES)]
    if duration_us is None or None in moved:
        return None
    moved_bytes = sum(value or 0.0 for value in moved)
    # What tensor instructions compute cannot be told from their number: their shapes differ.
    counted = kernel.get(m.TENSOR_INSTRUCTIONS) == 0
    flops = 2.0 * (kernel.get(m.FFMA) or 0.0) + sum(kernel.get(name) or 0.0 for name in (m.FADD, m.FMUL))
    bound_us, bound_by = None, "unknown"
    if ceilings is not None:
        bound_us = moved_bytes / ceilings.copy_bytes_per_s * 1e6
        bound_by = "memory"
        rate = ceilings.flops_per_s.get("fp32")
        if counted and rate and flops / rate * 1e6 > bound_us:
            bound_us, bound_by = flops / rate * 1e6, "compute"
    return RooflinePoint(
        name=kernel.name,
        time_us=duration_us,
        flops=flops if counted else None,
        bytes=moved_bytes,
        bound_us=bound_us,
        bound_by=_bound_by(kernel, bound_by),
        time_origin="ncu",
        work_origin="ncu",
    )


def _bound_by(kernel: NcuKernel, computed: str) -> BoundBy:
    """The nearer ceiling, where the kernel comes near to one at all."""
    if max(share(kernel, m.SM), share(kernel, m.MEMORY)) < 0.5:
        return "latency"
    return "compute" if computed == "compute" else "memory" if computed == "memory" else "unknown"


def _lines_of(
    kernel: str, lines: Mapping[str, Mapping[LineFigure, HotLine]], files: Sequence[str]
) -> dict[LineFigure, HotLine]:
    """The lines of a kernel; a source page may name it shorter than the raw page does."""
    found = lines.get(kernel)
    if found is None:
        bare = short_name(kernel)
        found = next((mine for name, mine in lines.items() if short_name(name) == bare), None)
    if found is None:
        return {}
    return {figure: replace(line, file=own_path(line.file, files)) for figure, line in found.items()}


def _run(
    ncu: Ncu, run: RunUnderTool, request: NcuRequest, limit_s: float
) -> tuple[Execution, tuple[str, ...]]:
    """The run with every metric that this ncu knows, and the names of the others."""
    left_out: tuple[str, ...] = ()
    for _ in range(_MOST_RETRIES):
        execution = _once(ncu, run, request, limit_s)
        names = unknown_metrics(f"{execution.stdout}\n{execution.stderr}")
        fresh = tuple(name for name in names if name in request.metrics)
        if not fresh or RAW in execution.reports:
            return execution, left_out
        left_out += fresh
        request = replace(request, metrics=tuple(name for name in request.metrics if name not in fresh))
    return _once(ncu, run, request, limit_s), left_out


def _once(ncu: Ncu, run: RunUnderTool, request: NcuRequest, limit_s: float) -> Execution:
    return run(
        ("/bin/sh", "-c", script(ncu, request), "profile_kernels"),
        readable=(ncu.folder, ncu.path),
        limit_s=limit_s,
    )


def _outcome(execution: Execution, output: str, limit_s: float) -> tuple[ProfileStatus, str]:
    if execution.timed_out:
        return "timed_out", f"under ncu the program {execution.why_not_done(limit_s)}"
    named = refusal(output)
    if named is not None and named[0] != "crashed":
        return named
    if execution.done:
        return "region_not_entered", "the program ran through, and ncu saw no kernel in the profiled region"
    return "crashed", named[1] if named is not None else execution.why_not_done(limit_s)
