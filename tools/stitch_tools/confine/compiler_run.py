"""Runs one compiler inside the isolation: `python bootstrap.py compile REQUEST`, in any Python.

Two processes of ours stand before it. The outer one enters the namespaces; its child is pid 1 of them, whose
end is the end of all that the compiler started. How it ended is told as lines of JSON on a descriptor that
the compiler does not get: its output belongs to the source's author.
"""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

from stitch_tools.confine import landlock, linux, sandbox, seccomp

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")

Request = dict[str, Any]


def main(text: str) -> int:
    """Exit code of the outer process; 0 also when the compiler failed.

    Args:
        text: the request as JSON. `command` is run in `folder` with `limits` (by RLIMIT name); `level` is the
            isolation, None where the system has none; `readable` and `writable` are its files; `report` is
            the descriptor for the answer, `parent` the pid whose end is ours.
    """
    request: Request = json.loads(text)
    os.set_inheritable(request["report"], False)
    try:
        if request["level"] == "full":
            sandbox.enter_namespaces()
        if request["level"] is not None:
            # After the namespaces: a change of credentials would unset it.
            linux.die_with_parent(signal.SIGKILL)
            if os.getppid() != request["parent"]:
                return 1
        inner = os.fork()
    except OSError as error:
        _tell(request, sandbox=str(error))
        return 1
    if not inner:
        _as_child(request, _run_inner)
    os.waitpid(inner, 0)
    return 0


def _as_child(request: Request, step: Callable[[Request], None]) -> None:
    """A step as a process' whole life; what the machine refuses is told. Never returns."""
    try:
        if request["level"] is not None:
            linux.die_with_parent(signal.SIGKILL)
        step(request)
    except (OSError, ValueError) as error:  # the latter is a limit that this system does not take
        _tell(request, sandbox=str(error))
    finally:
        os._exit(0)


def _run_inner(request: Request) -> None:
    if request["level"] == "full":
        sandbox.mount_private(None, 0, request["writable"])
    compiler = os.fork()
    if not compiler:
        _as_child(request, _become_compiler)
    while True:
        pid, status = os.wait()  # orphans come to pid 1
        if pid == compiler:
            break
    _tell(request, status=status)


def _become_compiler(request: Request) -> None:
    os.chdir(request["folder"])  # by its path again: a writable mount may lie over it now
    sandbox.set_limits(request["limits"])
    if request["level"] is not None:
        linux.drop_capabilities()
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        if request["level"] != "process":
            landlock.restrict(request["readable"], request["writable"], _DEVICES)
        seccomp.install()
    command = request["command"]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        _tell(request, not_started=error.errno)


def _tell(request: Request, **fields: object) -> None:
    os.write(request["report"], json.dumps(fields).encode("utf-8") + b"\n")
