"""The kernel level on a GPU: ncu over the kernels that take most, and their shares of the iteration."""

from collections import defaultdict
from collections.abc import Sequence

from stitch_tools.errors import EnvironmentMissingError, SandboxError
from stitch_tools.judge.trial import Trial
from stitch_tools.models.profile import KernelProfile, SystemProfile
from stitch_tools.profile.kernels import KernelReport, profile_kernels
from stitch_tools.profile.ncu import find_ncu
from stitch_tools.profile.ownership import last_name, short_name
from stitch_tools.profile.profile_host import HostSetup, HostUnderTool
from stitch_tools.profile.profile_work import ProfileWork
from stitch_tools.profile.static_kernels import static_profiles

_MOST_KERNELS = 12


def profile_top_kernels(work: ProfileWork, setup: HostSetup, system: SystemProfile | None) -> KernelReport:
    """Answers about the program's own kernels, or about those of a reference that take most."""
    try:
        ncu = find_ncu()
        report = profile_kernels(
            ncu,
            HostUnderTool(setup),
            questions=work.options.questions or None,
            kernels=_chosen(work, system),
            files=work.files,
            ceilings=work.known.ceilings,
            limit_s=work.options.limit_s,
            emit=work.emit,
        )
    except SandboxError as error:
        message = f"ncu does not work at this isolation level: {error.message}"
        return KernelReport("profiler_missing", message, not_measured=(message,))
    except EnvironmentMissingError as error:
        message = f"{error.message}: {error.hint}"
        return KernelReport("profiler_missing", message, not_measured=(message,))
    work.tools.extend(report.tools)
    return report


def static_kernels(work: ProfileWork, trial: Trial) -> tuple[KernelProfile, ...]:
    """Answers from the build of a native program alone; () where there is none, or it has no kernels."""
    build = trial.build
    if build is None or not build.ok or not build.resources:
        return ()
    sources = {
        file.path: trial.store.get(file.sha256).decode("utf-8", "replace") for file in trial.program.files
    }
    arch = trial.task.target.partition(":")[2]
    report = static_profiles(
        build,
        sources,
        prefixes=(trial.session.interpreter.prefix,),
        arch=arch if arch in build.archs else None,
    )
    work.tools.extend(report.tools)
    work.missing.extend(report.not_measured)
    return report.kernels


def _chosen(work: ProfileWork, system: SystemProfile | None) -> Sequence[str]:
    """Bare names of the kernels to look at; () is all."""
    if work.own:
        return tuple(sorted(work.own))
    if system is None:
        return ()
    rows = [row for row in system.kernels if row.owner != "copy"]
    return tuple(dict.fromkeys(last_name(row.name) for row in rows))[:_MOST_KERNELS]


def shared_out(kernels: Sequence[KernelProfile], system: SystemProfile | None) -> tuple[KernelProfile, ...]:
    """The kernels with their shares of an iteration's device time, where that was recorded."""
    if system is None:
        return tuple(kernels)
    shares: defaultdict[str, float] = defaultdict(float)
    for row in system.kernels:
        shares[row.name] += row.share
    by_short: defaultdict[str, float] = defaultdict(float)
    for row in system.kernels:
        by_short[short_name(row.name)] += row.share
    result = [
        kernel.model_copy(
            update={"share": shares.get(kernel.kernel) or by_short.get(short_name(kernel.kernel))}
        )
        for kernel in kernels
    ]
    return tuple(sorted(result, key=lambda kernel: -(kernel.share or 0.0)))
