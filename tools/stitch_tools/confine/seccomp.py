"""The system-call filter of every sandbox level (x86-64): a deny list that answers with an error.

Refused are internet sockets and connections to any other process' socket, reading or steering other
processes, new namespaces and mounts, io_uring (its operations pass no filter), and kernel interfaces that no
numerical program needs. Denied calls fail with EPERM, so that a library that merely probes goes on.
"""

import ctypes
import errno
import socket
import struct

from stitch_tools.confine import linux

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_NUMBER, _ARCH = 0, 4
_NAMESPACE_FLAGS = 0x7E020000
_TYPE_MASK = 0xF
_FILTER_MODE = 2

DENIED = {
    "connect": 42,
    "ptrace": 101,
    "syslog": 103,
    "pivot_root": 155,
    "chroot": 161,
    "acct": 163,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "timer_create": 222,  # it wakes a process that we stopped, and keeps the kernel busy in others' time
    "mq_notify": 244,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
}
# Allowed to profilers and sanitizers, which are not timed beside others.
_FOR_TOOLS = ("connect", "timer_create")
_SOCKET, _SENDTO, _SOCKETPAIR, _CLONE, _PRCTL, _CLONE3 = 41, 44, 53, 56, 157, 435
_SETPRIORITY, _IOPRIO_SET, _PRLIMIT = 141, 251, 302
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1

_Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _fail(code: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)


def _argument(index: int, *, high: bool = False) -> _Instruction:
    return (_LOAD, 0, 0, 16 + 8 * index + (4 if high else 0))


def _rule(number: int, body: list[_Instruction]) -> list[_Instruction]:
    """`body` for the system call `number`; it must end in a return."""
    return [(_EQUAL, 0, len(body), number), *body]


def _instructions(loopback: bool) -> list[_Instruction]:
    allow: _Instruction = (_RETURN, 0, 0, _ALLOW)
    refuse = _fail(errno.EPERM)
    # A datagram socket can address any other by name without connect(2), so only streams are allowed.
    unix_stream_only = [
        _argument(0),
        (_EQUAL, 0, 5, socket.AF_UNIX),
        _argument(1),
        (_AND, 0, 0, _TYPE_MASK),
        (_EQUAL, 1, 0, socket.SOCK_STREAM),
        (_EQUAL, 0, 1, socket.SOCK_SEQPACKET),
        allow,
        refuse,
    ]
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _X86_64),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32_BIT),
        refuse,
    ]
    # With its own network, and no socket file in sight (view), a process may connect where it likes.
    internet_too = [
        _argument(0),
        (_EQUAL, 6, 0, socket.AF_INET),
        (_EQUAL, 5, 0, socket.AF_INET6),
        *unix_stream_only[1:],
    ]
    for name, number in DENIED.items():
        if not (loopback and name in _FOR_TOOLS):
            program += _rule(number, [refuse])
    # The flags of clone3 lie behind a pointer; "not there" makes the C library use clone instead.
    program += _rule(_CLONE3, [_fail(errno.ENOSYS)])
    program += _rule(_CLONE, [_argument(0), (_ANY_BIT, 0, 1, _NAMESPACE_FLAGS), refuse, allow])
    program += _rule(_SOCKET, internet_too if loopback else unix_stream_only)
    program += _rule(_SOCKETPAIR, unix_stream_only)
    to_nobody = [_argument(4), (_EQUAL, 0, 3, 0), _argument(4, high=True), (_EQUAL, 0, 1, 0), allow, refuse]
    if not loopback:
        program += _rule(_SENDTO, to_nobody)
    # Whoever makes the others slower looks faster: priorities and limits are a process' own affair.
    for number, which in ((_SETPRIORITY, _PRIO_PROCESS), (_IOPRIO_SET, _IOPRIO_WHO_PROCESS)):
        own = [_argument(0), (_EQUAL, 0, 3, which), _argument(1), (_EQUAL, 0, 1, 0), allow, refuse]
        program += _rule(number, own)
    program += _rule(_PRLIMIT, [_argument(0), (_EQUAL, 0, 1, 0), allow, refuse])
    # A child that unset its parent-death signal could outlive us.
    program += _rule(_PRCTL, [_argument(0), (_EQUAL, 0, 1, linux.PR_SET_PDEATHSIG), refuse, allow])
    return [*program, allow]


def install(*, loopback: bool = False) -> None:
    """Put the filter on this process and everything it starts; needs no_new_privs.

    `loopback`: sockets may connect, internet ones too, and timers may send signals: for a process in a
    network namespace of its own that sees no socket of others in its file system.

    Raises:
        OSError: the kernel refused.
    """
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _instructions(loopback))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    linux.prctl(linux.PR_SET_SECCOMP, _FILTER_MODE, ctypes.addressof(program))
