"""Profiles a reference or an accepted program by the tools of this machine, and says what limits it."""

from contextlib import ExitStack

from stitch_tools.diagnose.diagnosis import diagnose, predictions_of
from stitch_tools.diagnose.evidence import ProfileEvidence
from stitch_tools.diagnose.roofline import roofline_of
from stitch_tools.diagnose.taxes import taxes_of
from stitch_tools.errors import LockedError
from stitch_tools.graph.lower_bounds import lower_bounds
from stitch_tools.judge.memory.cuda import own_kernels
from stitch_tools.judge.trial import Emit, Trial
from stitch_tools.machine.device_lock import device_lock
from stitch_tools.machine.devices import Gpu, cpu_info, resolve_target
from stitch_tools.models.profile import KernelProfile, Profile, ProfileStatus
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Check
from stitch_tools.profile.cpu_programs import profile_cpu_program
from stitch_tools.profile.kernel_level import profile_top_kernels, shared_out, static_kernels
from stitch_tools.profile.profile_host import HostSetup, program_setup, reference_setup
from stitch_tools.profile.profile_work import KnownFacts, ProfileOptions, ProfileWork
from stitch_tools.profile.system_level import SystemReport, profile_system, time_untraced
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store


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
    work = ProfileWork(task, "reference", task.task_id, chosen, facts, session, emit)
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
    work = ProfileWork(trial.task, "program", program.program_id, chosen, facts, trial.session, trial.emit)
    work.files, work.trial = tuple(file.path for file in program.files), trial
    if trial.on_gpu and check.status == "unmeasured" and resolve_target(trial.task.target).gpu is None:
        # Nothing runs here: what the build tells is worth having.
        message = f"{trial.task.target} is not here: answers from the build alone"
        return work.ended("unmeasured", message, kernels=static_kernels(work, trial))
    if check.program_id != program.program_id or check.status != "accepted":
        return work.ended(
            "not_accepted", f"only what was accepted is profiled: this program is {check.status}"
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
        setup = stack.enter_context(program_setup(trial, server))
        if program.format == "native" and not trial.on_gpu:
            return _cpu_program(work, setup, trial, server)
        return _profile(work, setup)


def _take_device(work: ProfileWork, stack: ExitStack) -> Profile | None:
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


def _profile(work: ProfileWork, setup: HostSetup) -> Profile:
    """Both levels as asked for, and what they amount to."""
    report = SystemReport("profiled")
    if work.options.level != "kernel" or not work.on_gpu:
        report = profile_system(work, setup)
    elif setup.job.get("kind") == "python":
        # Its first start builds its extensions.
        failed = time_untraced(work, setup)
        if failed is not None:
            return work.ended(failed.status, failed.message)
    if report.status != "profiled":
        return work.ended(report.status, report.message)
    kernels: tuple[KernelProfile, ...] = ()
    status: ProfileStatus = "profiled"
    message = ""
    if work.options.level != "system" and work.on_gpu:
        close = profile_top_kernels(work, setup, report.system)
        kernels = shared_out(close.kernels, report.system)
        work.missing.extend(close.not_measured)
        if close.status != "profiled":
            # The system level alone is worth having; the kernel level alone is all that was asked for.
            status = "partial" if report.system is not None else close.status
            message = f"no counters of kernels: {close.message}"
            if work.trial is not None:
                kernels = shared_out(static_kernels(work, work.trial), report.system)
    return _conclude(work, report, kernels, status, message)


def _cpu_program(work: ProfileWork, setup: HostSetup, trial: Trial, reference: ReferenceServer) -> Profile:
    """The profile of a native CPU program: PyTorch's profiler sees nothing of it."""
    failed = time_untraced(work, setup)
    if failed is not None:
        return work.ended(failed.status, failed.message)
    report = profile_cpu_program(
        trial, reference, cache_dir=work.options.cache_dir, untraced_us=work.untraced_us
    )
    work.tools.extend(report.tools)
    work.missing.extend(report.not_measured)
    if report.system is None:
        return work.ended(report.status, report.message, kernels=report.kernels)
    system = SystemReport("profiled", system=report.system)
    return _conclude(work, system, report.kernels, report.status, report.message)


def _conclude(
    work: ProfileWork,
    report: SystemReport,
    kernels: tuple[KernelProfile, ...],
    status: ProfileStatus,
    message: str,
) -> Profile:
    """The whole profile from its parts."""
    graph, ceilings, contract = work.known.graph, work.known.ceilings, work.task.contract
    if report.system is None:
        return work.ended(status, message, kernels=kernels)
    bounds = lower_bounds(graph, ceilings, contract) if graph and graph.nodes and ceilings else None
    evidence = ProfileEvidence(
        subject=work.subject,
        target=work.task.target,
        system=report.system,
        contract=contract,
        kernels=kernels,
        graph=graph,
        ceilings=ceilings,
        bounds=bounds,
        calibration_us=report.calibration_us,
    )
    if graph is None or not graph.nodes:
        work.missing.append("lower bounds and traffic between operations: the graph was not captured")
    if ceilings is None:
        work.missing.append("lower bounds: the device's limits were not measured (`stitch-mcp ceilings`)")
    elif ceilings.disturbed:
        work.missing.append(
            "lower bounds that hold: others used the device when its limits were measured, so bounds may be "
            "too long (`stitch-mcp ceilings --refresh` on a quiet machine)"
        )
    diagnosis = diagnose(evidence)
    return work.ended(
        status,
        message,
        system=report.system,
        kernels=kernels,
        taxes=taxes_of(evidence),
        roofline=roofline_of(evidence),
        bounds=bounds,
        diagnosis=diagnosis,
        predictions=predictions_of(evidence, diagnosis, work.subject_id),
    )
