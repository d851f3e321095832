"""What a child may touch: namespaces, file rules, system calls and resource limits.

Levels: `full` (user, pid, net, ipc and mount namespaces with an own /proc, and Landlock), `fs+net` (Landlock;
internet sockets refused by the filter), `process` (neither). Each has the system-call filter and the limits.
"""

import os
import shutil
import site
import struct
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from stitch_tools.confine import file_view, landlock, linux, seccomp
from stitch_tools.protocol.messages import Level
from stitch_tools.protocol.messages_session import SpawnChild

LEVELS: tuple[Level, ...] = get_args(Level)
"""Strongest first."""
NAMESPACES = (
    linux.CLONE_NEWUSER | linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWNS | linux.CLONE_NEWIPC
)
_NOBODY = 65534
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

_SYSTEM_READABLE = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/group",
    "/sys/bus",
    "/sys/class",
    "/sys/devices",
    "/sys/module",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
)
_DEVICES = ("null", "full", "dxg", "nvidia*")
_MEMORY_FOLDER = "/dev/shm"
_OWN_FOLDERS = ("confine", "protocol", "worker")
"""Folders of our package that a child imports from; the others stay out of its sight."""
_COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "ld", "nvcc")
# Parts of a prefix, not the prefix itself: some people make an environment of their project's own folder.
_PREFIX_PARTS = (
    "bin",
    "lib",
    "lib32",
    "lib64",
    "libexec",
    "include",
    "share",
    "etc",
    "ssl",
    "pyvenv.cfg",
    "nvvm",
    "targets",
    "compiler_compat",
    "x86_64-conda-linux-gnu",
)


def enter_namespaces() -> None:
    """Move this process (pid: its next child) into new namespaces, where its user is one without rights.

    Raises:
        OSError: the machine does not allow it.
    """
    uid, gid = os.geteuid(), os.getegid()
    # The /proc/self of an undumpable process belongs to root: a plain user could not write the maps.
    linux.set_dumpable(True)
    linux.unshare(NAMESPACES)
    # Root maps to nobody, so that a program executed inside never regains capabilities by its uid.
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid or _NOBODY} {uid} 1")
    _write("/proc/self/gid_map", f"{gid or _NOBODY} {gid} 1")
    linux.set_dumpable(False)


def mount_private(scratch: str | None, scratch_bytes: int, writable: Iterable[str] = ()) -> None:
    """Mount our own /proc, and a size-bounded scratch and memory folder; for pid 1 of the namespaces.

    All else but `writable` becomes read-only: Landlock knows no rule against changing a file's mode, owner,
    times or attributes, and files of the user's are the child's own.

    Raises:
        OSError: the machine does not allow it.
    """
    plain = linux.MS_NOSUID | linux.MS_NODEV
    # Else what is mounted here would show up in the namespace that we came from.
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.forbid_writes("/")
    # The old one shows the processes of the whole machine, with their command lines and environments.
    linux.mount("proc", "/proc", "proc", plain | linux.MS_NOEXEC)
    for folder in (scratch, _MEMORY_FOLDER) if scratch is not None else ():
        if Path(folder).is_dir():
            linux.mount("tmpfs", folder, "tmpfs", plain, f"size={scratch_bytes},mode=0700,nr_inodes=65536")
    for folder in writable:
        linux.allow_writes(folder)


def prepare_for_tool(request: SpawnChild) -> None:
    """Make safe what a child with `loopback` may do besides; for pid 1 of the namespaces, before it forks.

    Raises:
        OSError: the machine does not allow it.
    """
    _raise_loopback()
    _protect_proc()
    root = Path(request.scratch, ".root")
    root.mkdir()
    own = (request.scratch, _MEMORY_FOLDER, *request.writable)
    file_view.show_only(root.resolve(), (*readable_paths(request), *device_paths(), *own))


def _raise_loopback() -> None:
    """Switch the loopback device of our own network namespace on.

    Raises:
        OSError: the machine does not allow it.
    """
    import fcntl  # not on every system where this module is imported
    import socket

    request = struct.pack("16sh22x", b"lo", _IFF_UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _protect_proc() -> None:
    """Make all of our own /proc read-only but the folders of processes.

    The kernel's settings there (/proc/sys, sysrq-trigger, irq, PCI devices) ask for the user's number, for no
    capability: where root started us, they would be ours to write, for the whole machine.

    Raises:
        OSError: the machine does not allow it.
    """
    with os.scandir("/proc") as entries:
        paths = [entry.path for entry in entries if not entry.name.isdigit() and not entry.is_symlink()]
    for path in paths:
        linux.bind_read_only(path)


def probe_namespaces() -> str | None:
    """None where namespaces with an own /proc work, else the reason. Tries it in a child."""
    reader, writer = os.pipe()
    outer = os.fork()
    if not outer:
        os.close(reader)
        try:
            enter_namespaces()
            inner = os.fork()
            if inner:
                os.waitpid(inner, 0)
            else:
                mount_private(None, 0)
        except OSError as error:
            os.write(writer, str(error).encode("utf-8"))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as report:
        reason = report.read()
    os.waitpid(outer, 0)
    return reason or None


def strongest_level() -> tuple[Level, str]:
    """The strongest level that works here, and why it is not a stronger one ("" for full)."""
    if not landlock.abi_version():
        return "process", "the kernel has no Landlock (or it is switched off)"
    reason = probe_namespaces()
    return ("fs+net", reason) if reason else ("full", "")


def apply(request: SpawnChild) -> None:
    """Confine this process and all that it will start, for ever.

    Raises:
        OSError: some part was refused; nothing must run then.
    """
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if request.level != "process":
        own_memory = (_MEMORY_FOLDER,) if request.level == "full" else ()
        # cuInit names its threads through /proc/self/task/*/comm and fails (error 304) where it cannot. A
        # rule holds for the folder that /proc/self is now: what this process starts has another one.
        own_folders = "/proc" if request.level == "full" and request.loopback else "/proc/self"
        landlock.restrict(
            readable_paths(request),
            (request.scratch, *own_memory, *request.writable),
            (own_folders, *device_paths()),
            tcp=request.loopback,
        )
    linux.set_dumpable(request.role == "worker")
    seccomp.install(loopback=request.loopback)


def readable_paths(request: SpawnChild) -> tuple[str, ...]:
    """What it may read beside what it may write."""
    return (
        *_SYSTEM_READABLE,
        "/proc",
        *interpreter_folders(import_paths=request.role == "reference"),
        *request.readable,
    )


def device_paths() -> tuple[str, ...]:
    """The devices that it may use."""
    return tuple(str(path) for pattern in _DEVICES for path in Path("/dev").glob(pattern))


def interpreter_folders(*, import_paths: bool) -> list[str]:
    """Folders that this interpreter needs to run and import: its own, and torch's; or all of sys.path."""
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix))
    found = [str(Path(prefix, name)) for prefix in prefixes for name in _PREFIX_PARTS]
    found += [
        path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))
    ]
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    if torch_file:
        found.append(str(Path(torch_file).parent.parent))
    package = Path(__file__).resolve().parents[1]
    found += [str(package / name) for name in _OWN_FOLDERS]
    found += [path for name in ("CUDA_HOME", "CUDA_PATH") if (path := os.environ.get(name))]
    found += compiler_folders()
    if import_paths:
        found += sys.path
    return _existing(found)


def compiler_folders() -> list[str]:
    """Install folders of the compilers that torch.compile and load_inline would call; often outside /usr."""
    named = [os.environ[name].split()[0] for name in ("CC", "CXX") if os.environ.get(name, "").strip()]
    found = [path for name in (*named, *_COMPILERS) if (path := shutil.which(name))]
    folders = [Path(path).resolve().parent.parent for path in found]
    # A wrapper in ~/bin must not open the whole home folder.
    home = Path.home().resolve()
    return [str(folder) for folder in folders if folder not in (home, *home.parents)]


def _existing(paths: Iterable[str]) -> list[str]:
    return [path for path in dict.fromkeys(paths) if Path(path).is_absolute() and Path(path).exists()]


def set_limits(limits: dict[str, int]) -> None:
    """Lower this process' limits, for ever; RLIMIT_DATA counts from what is mapped now."""
    import resource  # not on every system where this module is imported

    for name, value in limits.items():
        number = getattr(resource, name)
        if name == "RLIMIT_DATA":
            value += mapped_data_bytes()
        _, hard = resource.getrlimit(number)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (allowed, allowed))


def mapped_data_bytes() -> int:
    """Private writable memory that this process has mapped, in bytes: what RLIMIT_DATA counts."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:")), 0)


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="utf-8")
