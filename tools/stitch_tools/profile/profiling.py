"""Profiles a reference or an accepted program by the tools of this machine, and says what limits it."""

import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stitch_tools.diagnose.diagnosis import diagnose, predictions_of
from stitch_tools.diagnose.evidence import ProfileEvidence
from stitch_tools.diagnose.roofline import roofline_of
from stitch_tools.diagnose.taxes import taxes_of
from stitch_tools.errors import EnvironmentMissingError, LockedError, SandboxError
from stitch_tools.graph.lower_bounds import lower_bounds
from stitch_tools.judge.memory.cuda import own_kernels
from stitch_tools.judge.trial import Emit, Trial
from stitch_tools.machine.device_lock import device_lock
from stitch_tools.machine.devices import Gpu, cpu_info, resolve_target
from stitch_tools.models.graph import Ceilings, Graph
from stitch_tools.models.profile import (
    KernelProfile,
    Origin,
    Profile,
    ProfileLevel,
    ProfilerTool,
    ProfileStatus,
    ProfileSubjectKind,
    SystemProfile,
)
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Check
from stitch_tools.profile.cpu_operators import summarize_cpu
from stitch_tools.profile.nsys import INSTALL_LIBDW, Nsys, Recording, failure_of, find_nsys, record_with_nsys
from stitch_tools.profile.profile_host import HostSetup, program_setup, reference_setup, run_host
from stitch_tools.profile.recorded_trace import DamagedTraceError, RecordedTrace, read_trace
from stitch_tools.profile.system import NoIterationError, NoKernelsError, calibration_us, summarize
from stitch_tools.profile.torch_profiler import record_with_torch
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store

SystemTool = Literal["auto", "nsys", "torch.profiler"]
_LOCK_WAIT_S = 60.0
# What a recording by another tool may still give.
_TRY_ANOTHER = ("not_converted", "region_not_entered", "profiler_missing", "damaged_report", "profiler_busy")


@dataclass(frozen=True)
class ProfileOptions:
    """What is asked for, and how long each run of the subject may take."""

    level: ProfileLevel = "system"
    tool: SystemTool = "auto"
    """For the system level: nsys where it works, else PyTorch's profiler."""
    limit_s: float = 180.0
    cache_dir: Path | None = None
    """Cache folder; None is the user's."""
    lock_wait_s: float = _LOCK_WAIT_S


@dataclass(frozen=True)
class KnownFacts:
    """What is known beside the recording; each makes the diagnosis say more."""

    graph: Graph | None = None
    ceilings: Ceilings | None = None
    untraced_us: float | None = None
    """Latency by a benchmark; None: measured in a process of its own, without a profiler."""


@dataclass
class _Work:
    """One profile while it is made."""

    task: Task
    subject: ProfileSubjectKind
    subject_id: str
    options: ProfileOptions
    known: KnownFacts
    session: TargetSession
    emit: Emit | None
    own: Collection[str] = ()
    tools: list[ProfilerTool] = field(default_factory=list[ProfilerTool])
    missing: list[str] = field(default_factory=list[str])
    untraced_us: float | None = None
    started_s: float = field(default_factory=time.monotonic)
    device: str = ""

    def say(self, sentence: str) -> None:
        if self.emit is not None:
            self.emit(sentence)

    @property
    def on_gpu(self) -> bool:
        return self.task.target.startswith("cuda")

    def ended(self, status: ProfileStatus, message: str = "", **facts: object) -> Profile:
        """The profile with this status."""
        return Profile(
            subject=self.subject,
            subject_id=self.subject_id,
            task_id=self.task.task_id,
            target=self.task.target,
            device=self.device,
            isolation=self.session.sandbox_level,
            level=self.options.level,
            status=status,
            message=message,
            tools=tuple(self.tools),
            not_measured=tuple(self.missing),
            wall_s=time.monotonic() - self.started_s,
        ).model_copy(update=facts)


def profile_reference(
    session: TargetSession,
    task: Task,
    store: Store,
    *,
    options: ProfileOptions | None = None,
    known: KnownFacts | None = None,
    emit: Emit | None = None,
) -> Profile:
    """The profile of a task's reference. What goes wrong under a profiler is a status.

    Raises:
        TaskError: the task's files cannot be used.
        WorkerError: a failure of ours.
    """
    chosen, facts = options or ProfileOptions(), known or KnownFacts()
    work = _Work(task, "reference", task.task_id, chosen, facts, session, emit)
    with ExitStack() as stack:
        refused = _take_device(work, stack)
        if refused is not None:
            return refused
        return _profile(work, stack.enter_context(reference_setup(session, task, store)))


def profile_program(
    trial: Trial,
    check: Check,
    *,
    options: ProfileOptions | None = None,
    known: KnownFacts | None = None,
) -> Profile:
    """The profile of a program that `check` accepted. What goes wrong under a profiler is a status.

    Args:
        trial: the program with its build.
        check: its evidence; of another program, or not accepted, nothing is run.
        options: level, tool and limits.
        known: graph, ceilings and latency.

    Raises:
        TaskError: the reference itself fails.
        WorkerError: a failure of ours.
    """
    chosen, facts = options or ProfileOptions(), known or KnownFacts()
    program = trial.program
    work = _Work(trial.task, "program", program.program_id, chosen, facts, trial.session, trial.emit)
    if check.program_id != program.program_id or check.status != "accepted":
        return work.ended(
            "not_accepted", f"a program is profiled after it was accepted: it is {check.status}"
        )
    if trial.on_gpu:
        work.own = own_kernels(trial).names
    with ExitStack() as stack:
        refused = _take_device(work, stack)
        if refused is not None:
            return refused
        server = trial.reference or stack.enter_context(
            ReferenceServer(trial.session, trial.task, trial.store)
        )
        return _profile(work, stack.enter_context(program_setup(trial, server)))


def _take_device(work: _Work, stack: ExitStack) -> Profile | None:
    """Lock the device; a profile that ends here where it is missing or busy."""
    gpu: Gpu | None = None
    if work.on_gpu:
        resolved = resolve_target(work.task.target)
        gpu = resolved.gpu
        if gpu is None:
            return work.ended("unmeasured", f"{work.task.target} is not here: {resolved.device}")
    work.device = gpu.name if gpu is not None else cpu_info().model
    try:
        lock = device_lock(
            gpu.uuid if gpu is not None else "cpu",
            wait_s=work.options.lock_wait_s,
            purpose="profiling",
            emit=work.emit,
        )
        stack.enter_context(lock)
    except LockedError as error:
        return work.ended("profiler_busy", error.message)
    return None


def _profile(work: _Work, setup: HostSetup) -> Profile:
    failed = _time_untraced(work, setup)
    if failed is not None:
        return work.ended(failed.status, failed.message)
    recording = _record(work, setup)
    if recording.status != "profiled" or recording.tables is None:
        return work.ended(recording.status, recording.message)
    try:
        trace = read_trace(recording.tables)
        system = _summarize(work, trace)
    except DamagedTraceError as error:
        return work.ended("damaged_report", f"the recording cannot be read: {error}")
    except NoIterationError as error:
        return work.ended("region_not_entered", str(error))
    except NoKernelsError as error:
        return work.ended("no_kernels", f"{error}: does forward run on the device at all?")
    return _conclude(work, system, calibration_us(trace), ())


def _time_untraced(work: _Work, setup: HostSetup) -> Recording | None:
    """Latency in a process that nothing records, where no benchmark gave it; a failure there ends all."""
    builds_itself = setup.job.get("kind") == "python"
    if work.known.untraced_us is not None and not builds_itself:
        work.untraced_us = work.known.untraced_us
        return None
    work.say("timing it without a profiler")
    run = run_host(setup, "none", limit_s=work.options.limit_s)
    failed = failure_of(run, work.options.limit_s)
    work.untraced_us = work.known.untraced_us or run.latency_us
    return failed


def _record(work: _Work, setup: HostSetup) -> Recording:
    """The recording by the first tool that gives one."""
    nsys = _usable_nsys(work)
    last = Recording("profiler_missing", "there is no profiler for the system level")
    if nsys is not None:
        work.say("recording it with nsys")
        last = _with_nsys(work, setup, nsys)
        if last.status not in _TRY_ANOTHER or work.options.tool == "nsys":
            return last
        work.missing.append(f"nsys: {last.message}; PyTorch's profiler recorded instead")
    elif work.options.tool == "nsys":
        return last
    (setup.folder / "recording.sqlite").unlink(missing_ok=True)
    work.say("recording it with PyTorch's profiler")
    recording = record_with_torch(setup, limit_s=work.options.limit_s)
    if recording.status == "profiled":
        work.tools.append(ProfilerTool(name="torch.profiler", version=work.session.torch_version))
    return recording


def _usable_nsys(work: _Work) -> Nsys | None:
    if not work.on_gpu or work.options.tool == "torch.profiler":
        return None
    try:
        nsys = find_nsys()
    except EnvironmentMissingError as error:
        work.missing.append(f"{error.message}: {error.hint}")
        return None
    if not nsys.has_libdw:
        work.missing.append(f"nsys would leave a .qdstrm file and no report: {INSTALL_LIBDW}")
        return None if work.options.tool == "auto" else nsys
    return nsys


def _with_nsys(work: _Work, setup: HostSetup, nsys: Nsys) -> Recording:
    try:
        recording = record_with_nsys(setup, nsys, limit_s=work.options.limit_s)
    except SandboxError as error:
        return Recording("profiler_missing", f"nsys does not work at this isolation level: {error.message}")
    if recording.status == "profiled":
        work.tools.append(ProfilerTool(name="nsys", version=nsys.version))
    return recording


def _summarize(work: _Work, trace: RecordedTrace) -> SystemProfile:
    if not work.on_gpu:
        return summarize_cpu(trace, untraced_us=work.untraced_us)
    return summarize(
        trace,
        origin=_origin_of(work.tools),
        own=work.own,
        is_reference=work.subject == "reference",
        untraced_us=work.untraced_us,
    )


def _origin_of(tools: Sequence[ProfilerTool]) -> Origin:
    return "nsys" if any(tool.name == "nsys" for tool in tools) else "torch.profiler"


def _conclude(
    work: _Work,
    system: SystemProfile,
    calibration: float | None,
    kernels: tuple[KernelProfile, ...],
) -> Profile:
    """The whole profile from its parts."""
    graph, ceilings = work.known.graph, work.known.ceilings
    contract = work.task.contract
    bounds = lower_bounds(graph, ceilings, contract) if graph and graph.nodes and ceilings else None
    evidence = ProfileEvidence(
        subject=work.subject,
        target=work.task.target,
        system=system,
        contract=contract,
        kernels=kernels,
        graph=graph,
        ceilings=ceilings,
        bounds=bounds,
        calibration_us=calibration,
    )
    if graph is None or not graph.nodes:
        work.missing.append("lower bounds and traffic between operations: the graph was not captured")
    if ceilings is None:
        work.missing.append("lower bounds: the device's limits were not measured (`stitch-mcp ceilings`)")
    diagnosis = diagnose(evidence)
    return work.ended(
        "profiled",
        system=system,
        kernels=kernels,
        taxes=taxes_of(evidence),
        roofline=roofline_of(evidence),
        bounds=bounds,
        diagnosis=diagnosis,
        predictions=predictions_of(evidence, diagnosis, work.subject_id),
    )
