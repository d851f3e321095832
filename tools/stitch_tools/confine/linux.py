"""The few Linux calls that Python 3.10 has no function for, through ctypes. x86-64 only."""

import contextlib
import ctypes
import functools
import os
import platform
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NEWIPC = 0x08000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT = 0x20
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

_SYS_CAPSET = 126
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY = 1
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63


def is_supported() -> bool:
    """Whether this is x86-64 Linux, for which the tables here and in seccomp.py are written."""
    return os.name == "posix" and platform.system() == "Linux" and platform.machine() == "x86_64"


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def prctl(option: int, *args: int) -> int:
    """What the kernel answered to a process-control option.

    Raises:
        OSError: the kernel refused.
    """
    padded = [ctypes.c_ulong(value) for value in (*args, 0, 0, 0, 0)[:4]]
    return _checked(_libc().prctl(option, *padded), f"prctl({option})")


def unshare(flags: int) -> None:
    """Move this process into new namespaces (pid: its next children)."""
    _checked(_libc().unshare(flags), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount a file system, or change the propagation of a mount (kind None)."""
    result = _libc().mount(
        source.encode(),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode(),
    )
    _checked(result, f"mount {kind or 'flags'} on {target}")


def forbid_writes(folder: str) -> None:
    """Make the mount of `folder` and all below it read-only in this mount namespace."""
    _set_mount_attributes(folder, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY, 0)


def allow_writes(folder: str) -> None:
    """Put a writable mount of `folder` over itself, where `forbid_writes` came before."""
    mount(folder, folder, None, MS_BIND | MS_REC)
    _set_mount_attributes(folder, 0, 0, _MOUNT_ATTR_RDONLY)


def _set_mount_attributes(folder: str, flags: int, set_bits: int, clear_bits: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(set_bits, clear_bits, 0, 0)
    path, size = os.fsencode(folder), ctypes.sizeof(attributes)
    syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path, flags, ctypes.byref(attributes), size)


def bind_read_only(path: str) -> None:
    """Put a read-only mount of `path` over itself; without capabilities nobody can take it away again."""
    mount(path, path, None, MS_BIND)
    mount(path, path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def syscall(number: int, *args: object) -> int:
    """The result of a raw system call; integers go as 64-bit words, ctypes objects as they are."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in args]
    return _checked(_libc().syscall(ctypes.c_long(number), *words), f"syscall {number}")


def drop_capabilities() -> None:
    """Give up every capability for ever, also for programs executed later."""
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # above the kernel's last one, or not privileged: then there is nothing to drop
    with contextlib.suppress(OSError):  # kernels before 4.3 have no ambient set
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    syscall(_SYS_CAPSET, ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def die_with_parent(signal_number: int) -> None:
    """Ask the kernel to send `signal_number` to this process when the thread that is its parent ends."""
    prctl(PR_SET_PDEATHSIG, signal_number)


def set_dumpable(dumpable: bool) -> None:
    """Allow or forbid core dumps, ptrace and /proc/PID/mem by processes of the same user."""
    prctl(PR_SET_DUMPABLE, int(dumpable))


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process instead of pid 1's."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def close_descriptors_except(keep: set[int]) -> None:
    """Close every open descriptor that is not in `keep`."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in keep:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(entry.name))
