"""From a spawn request to a confined, serving process: called in a fresh fork of the zygote.

Three processes take part: the outer one enters the namespaces and ends, its child is the init (pid 1 inside),
and the init's child is the role that serves.
"""

import contextlib
import gc
import importlib
import importlib.util
import os
import random
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from stitch_tools.confine import init, linux, sandbox
from stitch_tools.protocol.messages import Done, encode
from stitch_tools.protocol.messages_session import InitFailed, SpawnChild
from stitch_tools.protocol.serving import describe_error
from stitch_tools.protocol.wire import Channel, ChannelClosedError, ChannelTimeoutError

_OPEN_FILES = 4096


def run_outer(request: SpawnChild, report: int, go: int) -> None:
    """Enter the namespaces, fork the init, tell its pid on `report` (or "error: ..."). Never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    linux.close_descriptors_except({0, 1, 2, request.channel, request.control, report, go})
    try:
        if request.level == "full":
            sandbox.enter_namespaces()
        pid = os.fork()
        if not pid:
            os.close(report)
            _run_init(request, go)
        os.write(report, str(pid).encode("ascii"))
    except OSError as error:
        os.write(report, f"error: {error}".encode())
    os._exit(0)


def _run_init(request: SpawnChild, go: int) -> None:
    # Only now is the zygote our parent; nothing is read when it died meanwhile.
    if os.read(go, 1) != b"g":
        os._exit(1)
    os.close(go)
    own_namespace = request.level == "full"
    # Without a pid namespace what the child left elsewhere would live on: we end it before we end.
    linux.die_with_parent(signal.SIGKILL if own_namespace else signal.SIGTERM)
    watch = Channel(socket.socket(fileno=request.control))
    try:
        if own_namespace:
            sandbox.mount_private(request.scratch, request.limits.scratch_bytes, request.writable)
            if request.loopback:
                sandbox.prepare_for_tool(request)
        else:
            linux.become_subreaper()
        printed, output = os.pipe()
        pid = os.fork()
        if not pid:
            watch.close()
            _run_role(request, output)
        os.close(request.channel)
        os.close(output)
        # At level full the kernel bounds the scratch folder, which is a file system of its own.
        scratch = None if own_namespace else request.scratch
        init.Init(watch, pid, printed, request.limits, scratch).run()
    except Exception as error:  # outermost frame: whatever it is, the controller must hear of it
        watch.send(encode(InitFailed(describe_error(error))))
        os._exit(1)
    os._exit(0)


def _run_role(request: SpawnChild, output: int) -> None:
    linux.die_with_parent(signal.SIGKILL)
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    for fd, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(fd, target)
    linux.close_descriptors_except({0, 1, 2, request.channel})
    channel = Channel(socket.socket(fileno=request.channel))
    try:
        _prepare_environment(request)
        sandbox.set_limits(_resource_limits(request))
        sandbox.apply(request)
        serve = _load_serve(request)
        channel.send(encode(Done()))
    except Exception as error:  # outermost frame of the set-up: the controller waits for an answer
        channel.send(encode(describe_error(error)))
        os._exit(1)
    code = 0
    try:
        serve(channel, request.scratch)
    except (ChannelClosedError, ChannelTimeoutError):
        pass
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # outermost frame of the role: os._exit below would show nothing of it
        traceback.print_exc()
        code = 70
    _flush()
    # Not sys.exit: tearing down torch and foreign libraries is slow and may crash.
    os._exit(code & 0xFF)


def _prepare_environment(request: SpawnChild) -> None:
    scratch = request.scratch
    os.chdir(scratch)
    os.umask(0o077)
    os.environ.update({"HOME": scratch, "TMPDIR": scratch, "USER": "stitch", "LOGNAME": "stitch"})
    os.environ.update(request.env)
    # All children inherit one state from the zygote; one must not be able to predict another's draws.
    random.seed(os.urandom(32))
    tempfile.tempdir = None
    gc.enable()
    # When the machine runs out of memory, the kernel should take a child first (undumpable it cannot say so).
    linux.set_dumpable(True)
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _resource_limits(request: SpawnChild) -> dict[str, int]:
    limits = request.limits
    bounds = {
        "RLIMIT_CORE": 0,
        "RLIMIT_DATA": limits.memory_bytes,
        # Files in memory are files too, so this bounds tensor packs as well.
        "RLIMIT_FSIZE": limits.memory_bytes,
        "RLIMIT_NOFILE": _OPEN_FILES,
    }
    if limits.shadow_memory:
        del bounds["RLIMIT_DATA"]
    if request.level == "full":  # without an own user namespace it would count the user's other processes
        # Above the watchdog's bound, which gives the end its name.
        bounds["RLIMIT_NPROC"] = 2 * limits.processes * init.THREADS_PER_PROCESS
    return bounds


def _load_serve(request: SpawnChild) -> Callable[[Channel, str], None]:
    if request.serve_file is None:
        return importlib.import_module(request.serve_module).serve
    spec = importlib.util.spec_from_file_location("stitch_serve", request.serve_file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{request.serve_file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.serve


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the role may have closed it
            stream.flush()
