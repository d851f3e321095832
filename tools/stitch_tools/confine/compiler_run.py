"""Runs one compiler inside the isolation: `python bootstrap.py compile REQUEST`, in any Python.

Two processes of ours stand before it. The outer one enters the namespaces; its child is pid 1 of them, whose
end is the end of all that the compiler started. How it ended is told as lines of JSON on a descriptor that
the compiler does not get: its output belongs to the source's author.
"""

import json
import os
import signal
from collections.abc import Callable

from stitch_tools.confine import landlock, linux, sandbox, seccomp
from stitch_tools.protocol.messages import decode, encode
from stitch_tools.protocol.messages_session import CompilerEnded, CompilerRun
from stitch_tools.protocol.wire import Frame

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")


def main(text: str) -> int:
    """Exit code of the outer process; 0 also when the compiler failed. `text` is a `CompilerRun` as JSON."""
    request = decode(CompilerRun, Frame(json.loads(text)))
    os.set_inheritable(request.report, False)
    try:
        if request.level == "full":
            sandbox.enter_namespaces()
        if request.level is not None:
            # After the namespaces: a change of credentials would unset it.
            linux.die_with_parent(signal.SIGKILL)
            if os.getppid() != request.parent:
                return 1
        inner = os.fork()
    except OSError as error:
        _tell(request, CompilerEnded(not_isolated=str(error)))
        return 1
    if not inner:
        _as_child(request, _run_inner)
    os.waitpid(inner, 0)
    return 0


def _as_child(request: CompilerRun, step: Callable[[CompilerRun], None]) -> None:
    """A step as a process' whole life; what the machine refuses is told. Never returns."""
    try:
        if request.level is not None:
            linux.die_with_parent(signal.SIGKILL)
        step(request)
    except (OSError, ValueError) as error:  # the latter is a limit that this system does not take
        _tell(request, CompilerEnded(not_isolated=str(error)))
    finally:
        os._exit(0)


def _run_inner(request: CompilerRun) -> None:
    if request.level == "full":
        sandbox.mount_private(None, 0, request.writable)
    compiler = os.fork()
    if not compiler:
        _as_child(request, _become_compiler)
    while True:
        pid, status = os.wait()  # orphans come to pid 1
        if pid == compiler:
            break
    _tell(request, CompilerEnded(status=status))


def _become_compiler(request: CompilerRun) -> None:
    os.chdir(request.folder)  # by its path again: a writable mount may lie over it now
    sandbox.set_limits(request.limits)
    if request.level is not None:
        linux.drop_capabilities()
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        if request.level != "process":
            landlock.restrict(request.readable, request.writable, _DEVICES)
        seccomp.install()
    try:
        os.execvp(request.command[0], request.command)
    except OSError as error:
        _tell(request, CompilerEnded(not_started=error.errno))


def _tell(request: CompilerRun, ended: CompilerEnded) -> None:
    os.write(request.report, json.dumps(encode(ended).message).encode("utf-8") + b"\n")
