"""The warm parent of all workers: torch imported, no op ever run, nothing held.

It forks on request, passes the child its two sockets, reaps, and goes on. It dies with the controller, and
everything it forked dies with it.
"""

import gc
import importlib
import os
import select
import signal
import socket
import sys

from stitch_tools.confine import landlock, linux, process_tree, sandbox, spawn
from stitch_tools.protocol.messages import decode_one_of, encode
from stitch_tools.protocol.messages_session import SpawnChild, ZygoteReady
from stitch_tools.protocol.serving import describe_error
from stitch_tools.protocol.wire import Channel, ChannelClosedError, Frame, ProtocolError

_WORKER_MODULE = "stitch_tools.worker.candidate.candidate_server"


class Zygote:
    """The loop over spawn requests."""

    def __init__(self, control: Channel) -> None:
        self._control = control
        self._inits: set[int] = set()
        self._wake_reader, writer = os.pipe()
        for fd in (self._wake_reader, writer):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the controller is gone, then end every child."""
        poller = select.poll()
        poller.register(self._control.fileno(), select.POLLIN)
        poller.register(self._wake_reader, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
                self._reap()
            if self._control.fileno() in ready:
                try:
                    frame = self._control.receive()
                except ChannelClosedError:
                    break
                self._control.send(encode(self._answer(frame)))
        process_tree.kill_descendants(os.getpid())

    def _answer(self, frame: Frame) -> object:
        try:
            return self._spawn(decode_one_of((SpawnChild,), frame))
        except (OSError, ProtocolError) as error:
            return describe_error(error)
        finally:
            for fd in frame.fds:
                os.close(fd)

    def _spawn(self, request: SpawnChild) -> int:
        report_reader, report = os.pipe()
        go, go_writer = os.pipe()
        outer = os.fork()
        if not outer:
            spawn.run_outer(request, report, go)
        os.close(report)
        os.close(go)
        with os.fdopen(report_reader, encoding="utf-8") as told:
            answer = told.read()
        os.waitpid(outer, 0)
        try:
            if not answer.isdigit():
                raise OSError(answer.removeprefix("error: ") or "the new process ended at once")
            # The outer process is gone, so the init is our child now and may bind its life to ours.
            self._inits.add(int(answer))
            os.write(go_writer, b"g")
        finally:
            os.close(go_writer)
        return int(answer)

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                break
            self._inits.discard(pid)
        # Without a pid namespace a child that outlived its init comes to us; nobody else knows of it.
        process_tree.kill_descendants(os.getpid(), spare=frozenset(self._inits))


def print_isolation() -> None:
    """Print the strongest level."""
    linux.set_dumpable(False)
    print(sandbox.strongest_level()[0])


def main(control_fd: int, *, bound: bool) -> int:
    """Exit code of the zygote, which speaks over the inherited socket `control_fd`.

    `bound`: the controller's main thread started us (the kernel follows that thread, not the process).
    """
    if bound:
        linux.die_with_parent(signal.SIGKILL)
    control = Channel(socket.socket(fileno=control_fd))
    linux.close_descriptors_except({0, 1, 2, control_fd})
    try:
        import torch

        # Every worker would import it anew. It is code alone: nothing runs an operation or starts a thread.
        importlib.import_module(_WORKER_MODULE)
        linux.become_subreaper()
        linux.set_dumpable(False)
        level, reason = sandbox.strongest_level()
        ready = ZygoteReady(
            torch_version=str(torch.__version__),
            cuda_version=torch.version.cuda,
            level=level,
            level_reason=reason,
            landlock_abi=landlock.abi_version(),
        )
        control.send(encode(ready))
    except Exception as error:  # outermost frame: import torch runs foreign code
        control.send(encode(describe_error(error)))
        return 1
    # What exists now stays: collecting it in a child would only copy shared pages.
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
    Zygote(control).run()
    return 0
