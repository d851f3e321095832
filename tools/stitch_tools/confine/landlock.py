"""File and TCP access rules that the kernel enforces on this process and its children (Landlock)."""

import ctypes
import os
import stat
from collections.abc import Iterable

from stitch_tools.confine import linux

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_ALL_BY_ABI = ((1, (1 << 13) - 1), (2, 1 << 13), (3, _TRUNCATE), (5, _IOCTL_DEVICE))
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_TCP = 3  # bind and connect
_SCOPES = 3  # abstract Unix sockets and signals to processes outside


class _RulesetAttributes(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # Python 3.13+ wants the layout named when fields are packed
    _fields_ = (("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi_version() -> int:
    """The kernel's Landlock version, 0 where there is none."""
    try:
        return linux.syscall(_CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def restrict(
    readable: Iterable[str], writable: Iterable[str], devices: Iterable[str], *, tcp: bool = False
) -> None:
    """Allow this process, from now on, to read below `readable` and to do anything below `writable`.

    `devices` may be read, written and controlled; `tcp` leaves TCP alone. Paths that do not exist are
    skipped. Needs no_new_privs.

    Raises:
        OSError: the kernel refused a rule.
    """
    abi = abi_version()
    handled = sum(bits for since, bits in _ALL_BY_ABI if abi >= since)
    attributes = _RulesetAttributes(handled, _TCP if abi >= 4 and not tcp else 0, _SCOPES if abi >= 6 else 0)
    # Older kernels know a shorter structure and refuse a longer one whose tail is not zero; ours then is.
    ruleset = linux.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    try:
        for paths, access in (
            (readable, _READ),
            (writable, handled),
            (devices, _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE),
        ):
            for path in dict.fromkeys(paths):
                _allow(ruleset, path, access & handled)
        linux.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not there, or not reachable for us: nothing to allow
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _FILE_ONLY
        rule = _PathBeneath(access, fd)
        linux.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(fd)
