"""The system level: the subject's latency, a recording by the first tool that gives one, and its figures."""

from collections.abc import Sequence
from dataclasses import dataclass

from stitch_tools.errors import EnvironmentMissingError, SandboxError
from stitch_tools.models.profile import Origin, ProfilerTool, ProfileStatus, SystemProfile
from stitch_tools.profile.cpu_operators import summarize_cpu
from stitch_tools.profile.graph_nodes import with_bounds
from stitch_tools.profile.nsys import INSTALL_LIBDW, Nsys, Recording, failure_of, find_nsys, record_with_nsys
from stitch_tools.profile.profile_host import TABLES, HostSetup, run_host
from stitch_tools.profile.profile_work import ProfileWork
from stitch_tools.profile.recorded_trace import DamagedTraceError, RecordedTrace, read_trace
from stitch_tools.profile.system import NoIterationError, NoKernelsError, calibration_us, summarize
from stitch_tools.profile.torch_profiler import record_with_torch

# What a recording by another tool may still give.
_TRY_ANOTHER = ("not_converted", "region_not_entered", "profiler_missing", "profiler_busy")


@dataclass(frozen=True)
class SystemReport:
    """What the system level gave, or why it gave nothing."""

    status: ProfileStatus
    message: str = ""
    system: SystemProfile | None = None
    calibration_us: float | None = None
    """Mean recorded time of the short kernels that each recording holds."""


def profile_system(work: ProfileWork, setup: HostSetup) -> SystemReport:
    """Record the subject, and add the recording up.

    Raises:
        SandboxError: the isolation could not be applied.
    """
    failed = time_untraced(work, setup)
    if failed is not None:
        return SystemReport(failed.status, failed.message)
    recording = _record(work, setup)
    if recording.status != "profiled" or recording.tables is None:
        return SystemReport(recording.status, recording.message)
    try:
        trace = read_trace(recording.tables)
        system = _summarize(work, trace)
    except DamagedTraceError as error:
        return SystemReport("damaged_report", f"the recording cannot be read: {error}")
    except NoIterationError as error:
        return SystemReport("region_not_entered", str(error))
    except NoKernelsError as error:
        return SystemReport("no_kernels", f"{error}: does forward run on the device at all?")
    return SystemReport("profiled", system=system, calibration_us=calibration_us(trace))


def time_untraced(work: ProfileWork, setup: HostSetup) -> Recording | None:
    """Take the latency in a process that nothing records, where no benchmark gave it.

    Returns what went wrong: what does not run without a profiler does not run under one.
    """
    # A program in Python builds its extensions at its first start, which nobody shall record.
    if work.known.untraced_us is not None and setup.job.get("kind") != "python":
        work.untraced_us = work.known.untraced_us
        return None
    work.say("timing it without a profiler")
    run = run_host(setup, "none", limit_s=work.options.limit_s)
    work.untraced_us = work.known.untraced_us or run.latency_us
    return failure_of(run, work.options.limit_s)


def _record(work: ProfileWork, setup: HostSetup) -> Recording:
    """The recording by the first tool that gives one."""
    nsys = _usable_nsys(work)
    if nsys is not None:
        work.say("recording it with nsys")
        recording = _with_nsys(work, setup, nsys)
        if recording.status not in _TRY_ANOTHER or work.options.tool == "nsys":
            return recording
        work.missing.append(f"nsys: {recording.message}; PyTorch's profiler recorded instead")
    elif work.options.tool == "nsys":
        return Recording("profiler_missing", work.missing[-1] if work.missing else "nsys records GPUs only")
    (setup.folder / TABLES).unlink(missing_ok=True)
    work.say("recording it with PyTorch's profiler")
    recording = record_with_torch(setup, limit_s=work.options.limit_s)
    if recording.status == "profiled":
        work.tools.append(ProfilerTool(name="torch.profiler", version=work.session.torch_version))
    return recording


def _usable_nsys(work: ProfileWork) -> Nsys | None:
    if not work.on_gpu or work.options.tool == "torch.profiler":
        return None
    try:
        nsys = find_nsys()
    except EnvironmentMissingError as error:
        work.missing.append(f"{error.message}: {error.hint}")
        return None
    if not nsys.has_libdw and work.options.tool == "auto":
        work.missing.append(f"nsys would leave a .qdstrm file and no report: {INSTALL_LIBDW}")
        return None
    return nsys


def _with_nsys(work: ProfileWork, setup: HostSetup, nsys: Nsys) -> Recording:
    try:
        recording = record_with_nsys(setup, nsys, limit_s=work.options.limit_s)
    except SandboxError as error:
        return Recording("profiler_missing", f"it does not work at this isolation level ({error.message})")
    if recording.status == "profiled":
        work.tools.append(ProfilerTool(name="nsys", version=nsys.version))
    return recording


def _summarize(work: ProfileWork, trace: RecordedTrace) -> SystemProfile:
    # A program's operators are not the graph's.
    graph = work.known.graph if work.subject == "reference" else None
    if not work.on_gpu:
        system = summarize_cpu(trace, untraced_us=work.untraced_us, graph=graph)
    else:
        system = summarize(
            trace,
            origin=_origin_of(work.tools),
            own=work.own,
            is_reference=work.subject == "reference",
            untraced_us=work.untraced_us,
            graph=graph,
        )
    if graph is None or not system.nodes:
        return system
    nodes = with_bounds(system.nodes, graph, work.known.ceilings, work.task.contract)
    return system.model_copy(update={"nodes": nodes})


def _origin_of(tools: Sequence[ProfilerTool]) -> Origin:
    return "nsys" if any(tool.name == "nsys" for tool in tools) else "torch.profiler"
