"""The parent of one confined process: reaps, captures output, watches memory, and tells how it ended.

At level full it is pid 1 of the namespace, so its end is the end of everything inside. A confined process
that was itself pid 1 would misreport abort and ignore its own signals. Reports go straight to the controller.
"""

import contextlib
import os
import select
import signal
import time
from pathlib import Path
from typing import NoReturn

from stitch_tools.confine import process_tree
from stitch_tools.protocol.messages import Done, decode_one_of, encode
from stitch_tools.protocol.messages_session import (
    ChildEnded,
    ChildLimits,
    KillTree,
    PauseTree,
    ResumeTree,
    WatchdogReason,
)
from stitch_tools.protocol.wire import Channel, ChannelClosedError, ChannelTimeoutError, ProtocolError

THREADS_PER_PROCESS = 64
_TAIL_BYTES = 32 << 10
_WATCH_INTERVAL_S = 0.05
_SCRATCH_INTERVAL_S = 1.0
_STOP_WAIT_S = 1.0
# CPU time that a stopped tree may use, at one stop and at all. On a busy machine a thread may be on its way
# to the stop when we look (once in 1,500 stops, with a load of 6); one that works uses more.
_STANDING_NS, _STANDING_ALL_NS = 2_000_000, 10_000_000
_MAX_SCRATCH_ENTRIES = 65536


class PrintedText:
    """The end of what was printed, and how much it was in all."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.total = 0
        self.tail = b""
        os.set_blocking(fd, False)

    def drain(self) -> bool:
        """Take what is there; False at the end of the stream."""
        # Bounded, so that a flood cannot keep us from looking at its size.
        for _ in range(64):
            try:
                part = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return True
            if not part:
                return False
            self.total += len(part)
            self.tail = (self.tail + part)[-_TAIL_BYTES:]
        return True


class Init:
    """Supervision of one child until it ends."""

    def __init__(
        self,
        control: Channel,
        child: int,
        printed: int,
        limits: ChildLimits,
        scratch: str | None,
    ) -> None:
        """Watch a child that was just forked.

        `printed`: the pipe of what it prints. `scratch`: the folder whose size is watched; None at level
        full, where the kernel bounds it.
        """
        self._control = control
        self._child = child
        self._printed = PrintedText(printed)
        self._limits, self._scratch = limits, scratch
        self._own_namespace = scratch is None
        self._reason: WatchdogReason | None = None
        self._paused = False
        self._used_ns: dict[int, int] = {}
        """CPU time by process, when all stood still."""
        self._ran_ns = 0
        """CPU time that was used while all should have stood still."""
        self._baseline_bytes = process_tree.usage(child).resident_bytes
        self._oom_kills = _oom_kills()
        self._scratch_due = 0.0
        self._status: int | None = None

    def run(self) -> None:
        """Watch until the child has ended, end what it left behind, report."""
        reader, writer = os.pipe()
        for fd in (reader, writer):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        if not self._own_namespace:
            # Our parent's death. Not for pid 1, which would then hear what its children send as well.
            signal.signal(signal.SIGTERM, lambda number, frame: self._abandon())
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        poller = select.poll()
        for fd in (reader, self._control.fileno(), self._printed.fd):
            poller.register(fd, select.POLLIN)
        due = time.monotonic()
        self._reap()
        while self._status is None:
            ready = dict(poller.poll(_WATCH_INTERVAL_S * 1000))
            if reader in ready:
                os.read(reader, 4096)
                self._reap()
            if self._printed.fd in ready:
                self._take_output(poller)
            if self._control.fileno() in ready:
                self._obey()
            if time.monotonic() >= due and not self._paused and self._status is None:
                self._watch()
                due = time.monotonic() + _WATCH_INTERVAL_S
        self._finish()

    def _take_output(self, poller: select.poll) -> None:
        if not self._printed.drain():
            poller.unregister(self._printed.fd)
        if self._printed.total > self._limits.output_bytes:
            self._end("output_flood")

    def _obey(self) -> None:
        try:
            asked = decode_one_of((KillTree, PauseTree, ResumeTree), self._control.receive(timeout_s=1.0))
        except (ChannelClosedError, ChannelTimeoutError, ProtocolError):
            self._abandon()
        if isinstance(asked, KillTree):
            self._end("killed")
        elif isinstance(asked, PauseTree):
            self._signal_all(signal.SIGSTOP)
            self._paused = True
            self._await_stop()
            self._tell(Done())
        else:
            went_on = self._paused and self._went_on()
            self._signal_all(signal.SIGCONT)
            self._paused = False
            self._tell(went_on)

    def _abandon(self) -> NoReturn:
        """End everything and ourselves: the controller is gone."""
        if not self._own_namespace:  # else the kernel does it
            process_tree.kill_descendants(os.getpid())
        os._exit(1)

    def _await_stop(self) -> None:
        deadline = time.monotonic() + _STOP_WAIT_S
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, self._child, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(0.0002)
        others = [pid for pid in self._members() if pid != self._child]
        while any(map(process_tree.is_running, others)) and time.monotonic() < deadline:
            time.sleep(0.0002)
        self._used_ns = self._times()

    def _went_on(self) -> bool:
        """Whether anything used a CPU since it was stopped.

        Programs have ways to be sent SIGCONT: by a timer of the kernel, by the end of a child, by each other.
        """
        now = self._times()
        ran_ns = sum(now.values()) - sum(self._used_ns.get(pid, 0) for pid in now)
        self._ran_ns += ran_ns
        return ran_ns > _STANDING_NS or self._ran_ns > _STANDING_ALL_NS

    def _times(self) -> dict[int, int]:
        found = {pid: process_tree.cpu_ns(pid) for pid in self._members()}
        return {pid: used for pid, used in found.items() if used is not None}

    def _watch(self) -> None:
        members = self._members()
        usages = [process_tree.usage(pid) for pid in members]
        held = sum(usage.resident_bytes for usage in usages)
        if held - self._baseline_bytes > self._limits.memory_bytes:
            self._end("out_of_memory")
        elif (
            len(members) > self._limits.processes
            or sum(usage.threads for usage in usages) > self._limits.processes * THREADS_PER_PROCESS
        ):
            self._end("too_many_processes")
        elif self._scratch and time.monotonic() >= self._scratch_due:
            self._scratch_due = time.monotonic() + _SCRATCH_INTERVAL_S
            most = self._limits.scratch_bytes
            if folder_bytes(self._scratch, most) > most:
                self._end("scratch_full")

    def _members(self) -> list[int]:
        return (
            process_tree.namespace_members() if self._own_namespace else process_tree.descendants(os.getpid())
        )

    def _signal_all(self, number: int) -> None:
        if not self._own_namespace:
            process_tree.signal_each(self._members(), number)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)  # everything in the namespace but us, at once

    def _end(self, reason: WatchdogReason) -> None:
        self._reap()
        if self._status is not None:
            return  # it was faster: how it ended by itself is what counts
        self._reason = reason
        self._signal_all(signal.SIGKILL)
        _, self._status = os.waitpid(self._child, 0)

    def _reap(self) -> None:
        while self._status is None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._child:
                self._status = status

    def _finish(self) -> None:
        self._printed.drain()
        self._signal_all(signal.SIGKILL)
        if not self._own_namespace:
            process_tree.kill_descendants(os.getpid())
        status = self._status or 0
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        if killed == signal.SIGKILL and self._reason is None and _oom_kills() > self._oom_kills:
            self._reason = "out_of_memory"
        self._tell(
            ChildEnded(
                exit_code=os.WEXITSTATUS(status) if killed is None else None,
                signal=killed,
                reason=self._reason,
                output_tail=self._printed.tail.decode("utf-8", "replace"),
            )
        )

    def _tell(self, message: object) -> None:
        try:
            self._control.send(encode(message), timeout_s=5.0)
        except (ChannelClosedError, ChannelTimeoutError):
            os._exit(1)


def folder_bytes(folder: str, stop_at: int) -> int:
    """Disk space below `folder`, counted until it passes `stop_at`; too many entries count as too much."""
    total = entries = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            entries += 1
            try:
                total += Path(parent, name).lstat().st_blocks * 512
            except OSError:
                continue
            if total > stop_at or entries > _MAX_SCRATCH_ENTRIES:
                return stop_at + 1
    return total


def _oom_kills() -> int:
    """How often the kernel has killed for memory since the machine started; 0 where it does not say."""
    try:
        counters = Path("/proc/vmstat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in counters.splitlines() if line.startswith("oom_kill ")), 0)
