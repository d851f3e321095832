"""What this machine has and lacks, item by item, each with the fix."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stitch_mcp.config import Config, unknown_environment
from stitch_tools.errors import EnvironmentMissingError, StitchError
from stitch_tools.models.base import Fact
from stitch_tools.storage.store import can_write

if TYPE_CHECKING:
    from stitch_tools.compile.toolchain import Compiler
    from stitch_tools.profile.permission import CounterAccess
    from stitch_tools.run.interpreter import Interpreter
    from stitch_tools.run.session import TargetSession

Status = Literal["ok", "warning", "optional", "missing", "failed"]
_LITTLE_DISK_BYTES = 2 << 30
_INSTEAD = "`stitch-mcp profile` uses PyTorch's profiler without it"


class Item(Fact):
    """One thing that was looked at."""

    name: str
    status: Status
    """What is not there: `optional` nobody has to have, `missing` is for a target or some programs; `failed`:
    nothing can be checked or timed without it."""
    detail: str
    """What was found."""
    fix: str = ""
    """What to do, "" where all is well."""


class Diagnosis(Fact):
    """All items, and what this machine can do with them."""

    items: tuple[Item, ...]
    can_solve_cpu: bool
    """Whether `solve --target cpu` has all that it needs."""
    can_build_cuda: bool
    can_measure_cuda: bool


def examine(config: Config, emit: Callable[[str], None] | None = None) -> Diagnosis:
    """The state of this machine. Never raises for what is missing: that is what it reports."""
    say = emit or _silent
    # Said first, since importing torch takes seconds.
    say("starting the target interpreter; looking at Python, compilers and libraries")
    interpreter = _interpreter(config)
    # Builds look for libraries in the same place.
    prefixes = () if isinstance(interpreter, StitchError) else (interpreter.prefix,)
    # Torch takes seconds to import: all that does not need it is looked at meanwhile.
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(_tool_items, config, prefixes)
        target_items, torch_cuda = _target_items(config, interpreter)
        tools = looking.result()
    say("looking for GPUs and profilers")
    items = [
        *tools,
        *target_items,
        *_gpu_items(config, torch_cuda),
        *_profiler_items(),
        *_limit_items(config),
        *_disk_items(config),
    ]
    items += [
        Item(name="settings", status="warning", detail=text) for text in unknown_environment(os.environ)
    ]
    status = {item.name: item.status for item in items}
    # A warning means slower or less isolated, not impossible.
    usable = ("ok", "warning")
    runs = all(status.get(name) in usable for name in ("platform", "target interpreter", "isolation"))
    builds_cuda = status.get("nvcc") == status.get("nvcc host compiler") == "ok"
    return Diagnosis(
        items=tuple(items),
        can_solve_cpu=runs and status.get("C++ compiler") == "ok",
        can_build_cuda=builds_cuda,
        can_measure_cuda=runs and builds_cuda and status.get("GPU") == "ok",
    )


def _tool_items(config: Config, prefixes: Sequence[Path]) -> list[Item]:
    return [
        _platform_item(),
        _cpu_item(),
        _python_item(),
        *_compiler_items(config),
        *_library_items(prefixes),
    ]


def _cuda_status(config: Config) -> Status:
    """What it means that something is not there which programs for a GPU alone need."""
    return "optional" if config.target == "cpu" else "missing"


def _silent(sentence: str) -> None:
    del sentence


def _failure(name: str, error: StitchError, status: Status = "failed") -> Item:
    return Item(name=name, status=status, detail=error.message, fix=error.hint)


def _platform_item() -> Item:
    detail = f"{platform.system()} {platform.release()} {platform.machine()}"
    if platform.system() == "Linux" and platform.machine() in ("x86_64", "AMD64"):
        return Item(name="platform", status="ok", detail=detail)
    fix = "programs are run and timed on x86-64 Linux only (WSL2 counts); planning and CUDA builds work here"
    return Item(name="platform", status="failed", detail=detail, fix=fix)


def _cpu_item() -> Item:
    from stitch_tools.machine.devices import cpu_info

    cpu = cpu_info()
    vectors = next((name for name in ("avx512f", "avx2", "avx") if name in cpu.flags), "no AVX")
    detail = f"{cpu.model}, {cpu.usable} of {cpu.cores} cores usable, {vectors}"
    return Item(name="CPU", status="ok", detail=detail)


def _python_item() -> Item:
    return Item(name="our Python", status="ok", detail=f"{platform.python_version()} ({sys.executable})")


def _compiler_items(config: Config) -> list[Item]:
    from stitch_tools.compile.toolchain import cuda_root, cxx_problem, find_cpp_compiler, find_nvcc

    items: list[Item] = []
    host = nvcc = None
    try:
        host = find_cpp_compiler()
        items.append(Item(name="C++ compiler", status="ok", detail=f"{host.version_line} ({host.path})"))
    except EnvironmentMissingError as error:
        items.append(_failure("C++ compiler", error))
    if host is not None and (passed_over := cxx_problem()):
        detail = f"{passed_over}; {host.path} is used in its place"
        items.append(Item(name="CXX", status="warning", detail=detail, fix="unset CXX, or set STITCH_CXX"))
    try:
        nvcc = find_nvcc()
        items.append(Item(name="nvcc", status="ok", detail=f"{nvcc.version_line} ({cuda_root(nvcc)})"))
    except EnvironmentMissingError as error:
        items.append(_failure("nvcc", error, _cuda_status(config)))
    return [*items, _host_item(nvcc, host)] if nvcc is not None else items


def _host_item(nvcc: "Compiler", host: "Compiler | None") -> Item:
    """The compiler that nvcc leaves the host's code to: without it nothing is built for a GPU."""
    from stitch_tools.compile.toolchain import host_compiler_problem

    name = "nvcc host compiler"
    if host is None:
        fix = "see the C++ compiler: it is the same"
        return Item(name=name, status="failed", detail="none: nvcc needs a C++ compiler beside it", fix=fix)
    problem = host_compiler_problem(nvcc, host)
    if problem is None:
        return Item(name=name, status="ok", detail=f"{host.path.name} {host.major} fits")
    fix = "name an older host compiler with STITCH_CXX, or install a newer toolkit"
    return Item(name=name, status="failed", detail=problem, fix=fix)


def _library_items(prefixes: Sequence[Path]) -> list[Item]:
    """The libraries as a build finds them, which looks in the target interpreter's prefix first."""
    from stitch_tools.compile.headers import Library, find_cublas, find_onednn

    items: list[Item] = []
    lacking: tuple[tuple[Library, Status, str], ...] = (
        (find_onednn(prefixes), "missing", "needed for matrix products and convolutions of cpu programs"),
        (find_cublas(prefixes), "optional", "for programs of your own that include its header"),
    )
    for library, status, use in lacking:
        # Headers decide: where they are, a missing shared object comes from torch.
        if library.include is None:
            detail = f"not found; {use}"
            items.append(Item(name=library.name, status=status, detail=detail, fix=library.hint))
            continue
        where = f"headers in {library.include}"
        where += f", library {library.shared_object}" if library.shared_object else ", library from torch"
        items.append(Item(name=library.name, status="ok", detail=where))
    return items


def _interpreter(config: Config) -> "Interpreter | StitchError":
    """The target interpreter, or why there is none."""
    from stitch_tools.run.interpreter import find_interpreter

    try:
        return find_interpreter(config.python, config.workspace)
    except StitchError as error:
        return error


def _target_items(config: Config, interpreter: "Interpreter | StitchError") -> tuple[list[Item], str | None]:
    """Target interpreter and isolation, found by starting a session as every command does."""
    from stitch_tools.run.session import TargetSession

    if isinstance(interpreter, StitchError):
        return [_failure("target interpreter", interpreter)], None
    chosen = _chosen_by(interpreter.source, config)
    detail = (
        f"Python {interpreter.python_version}, torch {interpreter.torch_version} "
        f"({interpreter.path}, {chosen})"
    )
    item = Item(name="target interpreter", status="ok", detail=detail)
    try:
        # A real session instead of a list of features: what counts is the isolation that a child gets in the
        # end.
        with TargetSession(interpreter, require_sandbox=config.require_sandbox) as session:
            isolation = isolation_item(session.sandbox_level, session.sandbox_reason)
            return [item, isolation, *_plane_items(session)], session.cuda_version
    except StitchError as error:
        return [item, _failure("isolation", error)], None


def _chosen_by(source: str, config: Config) -> str:
    """Why this interpreter is the target."""
    descriptions = {
        "option": f"chosen by {config.origin('python')}",
        "set-up": "found by scripts/setup",
        "own": "the one that runs stitch-mcp",
    }
    return descriptions.get(source, f"found by {source}")


def _plane_items(session: "TargetSession") -> list[Item]:
    """The way of tensors between judge and program, tried out where there is a GPU."""
    from stitch_tools.machine.devices import find_gpus

    if not find_gpus().gpus or session.cuda_version is None:
        return []
    plane = session.plane()
    return [plane_item(plane.kind, plane.reason)]


def plane_item(kind: str, reason: str) -> Item:
    """How tensors on the GPU travel between judge and program, and why not the quick way."""
    if kind == "device":
        return Item(name="data plane", status="ok", detail="device: memory of the GPU that both map")
    detail = f"host: tensors on the GPU are copied through memory of the host, which takes longer: {reason}"
    fix = "nothing has to be done; checks of large tensors take longer"
    return Item(name="data plane", status="optional", detail=detail, fix=fix)


def isolation_item(level: str, reason: str) -> Item:
    """The isolation that sessions reach, and how to get more where it is not full."""
    if level == "full":
        return Item(name="isolation", status="ok", detail="full: namespaces, Landlock and seccomp")
    fix = (
        "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, or on Ubuntu "
        "kernel.apparmor_restrict_unprivileged_userns=0; in Docker --security-opt seccomp=unconfined)"
    )
    return Item(name="isolation", status="warning", detail=f"{level}: {reason}", fix=fix)


def _gpu_items(config: Config, torch_cuda: str | None) -> list[Item]:
    from stitch_tools.compile.toolchain import find_nvcc
    from stitch_tools.machine.devices import find_gpus

    search = find_gpus()
    if not search.gpus:
        detail = f"none: {search.problem}; cuda programs are built and stay unmeasured"
        fix = "use --target cpu, or a machine with one"
        if config.target == "cpu":
            fix = "nothing has to be done for --target cpu"
        return [Item(name="GPU", status=_cuda_status(config), detail=detail, fix=fix)]
    names = ", ".join(f"{gpu.name} ({gpu.arch})" for gpu in search.gpus)
    detail = f"{names}; driver {search.driver or 'unknown'}, runs CUDA {search.driver_cuda or 'unknown'}"
    try:
        toolkit = ".".join(str(part) for part in find_nvcc().version[:2])
    except EnvironmentMissingError:
        toolkit = None
    return [
        Item(name="GPU", status="ok", detail=detail),
        *version_items(search.driver_cuda, torch_cuda, toolkit),
    ]


def version_items(driver_cuda: str | None, torch_cuda: str | None, toolkit: str | None) -> list[Item]:
    """Torch and toolkit beside the driver: what is newer than the driver's major version does not run."""
    items: list[Item] = []
    fix = "install a torch build for the driver's CUDA version"
    if torch_cuda is None:
        items.append(
            Item(name="torch and driver", status="warning", detail="torch was built without CUDA", fix=fix)
        )
    else:
        items.append(_version_item("torch and driver", torch_cuda, driver_cuda, fix))
    if toolkit is not None:
        fix = "install the toolkit of the driver's major version"
        items.append(_version_item("toolkit and driver", toolkit, driver_cuda, fix))
    return items


def _version_item(name: str, version: str, driver_cuda: str | None, fix: str) -> Item:
    # Within one major version CUDA programs run on older drivers; beyond it they do not.
    if driver_cuda is not None and _major(version) > _major(driver_cuda):
        detail = f"CUDA {version} is newer than the driver's {driver_cuda}"
        return Item(name=name, status="failed", detail=detail, fix=f"update the driver, or {fix}")
    return Item(name=name, status="ok", detail=f"CUDA {version} on a driver for {driver_cuda or 'unknown'}")


def _major(version: str) -> int:
    match = re.match(r"\d+", version)
    return int(match.group()) if match else 0


def _profiler_items() -> list[Item]:
    """The profilers of a GPU. On a CPU PyTorch's own profiler and our sampler need nothing."""
    from stitch_tools.machine.devices import find_gpus
    from stitch_tools.profile.ncu import INSTALL_NCU, find_ncu
    from stitch_tools.profile.nsys import find_nsys
    from stitch_tools.profile.permission import counter_access

    try:
        ncu = find_ncu()
        items = [Item(name="ncu", status="ok", detail=f"{ncu.path} {ncu.version}".rstrip())]
    except EnvironmentMissingError as error:
        fix = f"{INSTALL_NCU}; without it kernels get answers from their build alone"
        items = [Item(name="ncu", status="optional", detail=error.message, fix=fix)]
    if find_gpus().gpus:
        items.append(counter_item(counter_access()))
    try:
        nsys = find_nsys()
        items.append(nsys_item(f"{nsys.path} {nsys.version}", has_libdw=nsys.has_libdw))
    except EnvironmentMissingError:
        items.append(nsys_item(None, has_libdw=False))
    return items


def counter_item(access: "CounterAccess") -> Item:
    """Whether ncu may read the GPU's counters, and how to get the permission."""
    from stitch_tools.profile.permission import ALLOW_COUNTERS

    if access.likely:
        return Item(name="GPU counters", status="ok", detail=access.describe())
    if access.likely is None:
        return Item(name="GPU counters", status="optional", detail=access.describe(), fix=ALLOW_COUNTERS)
    detail = "the driver lets administrators alone read them"
    return Item(name="GPU counters", status="warning", detail=detail, fix=ALLOW_COUNTERS)


def nsys_item(nsys: str | None, *, has_libdw: bool) -> Item:
    """The nsys found, and whether it can turn its raw recording into a report.

    The Nsight Systems that comes inside Nsight Compute leaves a `.qdstrm` unless libdw can be loaded.
    """
    from stitch_tools.profile.nsys import INSTALL_LIBDW, INSTALL_NSYS

    if nsys is None:
        fix = f"{INSTALL_NSYS}; {_INSTEAD}"
        return Item(name="nsys", status="optional", detail="not found", fix=fix)
    if not has_libdw:
        detail = f"{nsys}, but libdw.so.1 is missing: it would leave a .qdstrm and no report"
        fix = f"{INSTALL_LIBDW}; {_INSTEAD}"
        return Item(name="nsys", status="warning", detail=detail, fix=fix)
    return Item(name="nsys", status="ok", detail=nsys)


def _limit_items(config: Config) -> list[Item]:
    """Whether this device's limits were measured: bounds, taxes and predictions rest on them."""
    from stitch_tools.machine.devices import resolve_target, usable_cpus
    from stitch_tools.run.ceilings import cached_ceilings

    target = resolve_target(config.target)
    if not target.available:
        return []
    threads = config.threads or usable_cpus()
    known = cached_ceilings(target.name, threads=threads, cache_dir=config.cache_dir)
    if known is None:
        fix = "they are measured at first need, or now by `stitch-mcp ceilings`"
        return [Item(name="ceilings", status="optional", detail="not measured yet", fix=fix)]
    detail = (
        f"copy {known.copy_bytes_per_s / 1e9:.0f} GB/s, fp32 {known.flops_per_s.get('fp32', 0.0) / 1e9:.0f} "
        f"GFLOP/s, launch {known.launch_us:.1f} us"
    )
    if known.transfers is not None and known.transfers.to_device_pinned is not None:
        detail += f", to the device {known.transfers.to_device_pinned / 1e9:.0f} GB/s"
    if known.disturbed:
        fix = "`stitch-mcp ceilings --refresh` when nothing else runs"
        return [Item(name="ceilings", status="warning", detail=f"{detail}; others ran meanwhile", fix=fix)]
    return [Item(name="ceilings", status="ok", detail=detail)]


def _disk_items(config: Config) -> list[Item]:
    import tempfile

    from stitch_tools.storage.user_cache import user_cache_dir

    folders = {
        "workspace": config.workspace / ".stitch",
        "cache": config.cache_dir or user_cache_dir(),
        "temporary files": Path(tempfile.gettempdir()),
    }
    return [folder_item(name, folder) for name, folder in folders.items()]


def _exists(path: Path) -> bool:
    try:
        # No folder can be made where a link leads nowhere or in a circle.
        return path.exists() or path.is_symlink()
    except OSError:  # a folder above hides it
        return False


def folder_item(name: str, folder: Path) -> Item:
    """Whether a folder, which need not exist yet, can be written and has room."""
    # Nothing is created by looking: what counts is the folder in which it would be made.
    existing = next(path for path in (folder, *folder.parents) if _exists(path))
    if not can_write(existing):
        option = {"workspace": "--workspace", "cache": "STITCH_CACHE_DIR"}.get(name, "TMPDIR")
        fix = f"choose another folder with {option}"
        return Item(name=name, status="failed", detail=f"{existing} cannot be written", fix=fix)
    free = shutil.disk_usage(existing).free
    detail = f"{folder}, {free / 1e9:.1f} GB free"
    if free < _LITTLE_DISK_BYTES:
        fix = "free some space; `stitch-mcp cache clear` removes builds"
        return Item(name=name, status="warning", detail=detail, fix=fix)
    return Item(name=name, status="ok", detail=detail)
