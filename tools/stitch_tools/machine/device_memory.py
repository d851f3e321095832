"""Memory of a device that several jobs use at once: each claims what it will take before it starts.

A claim is a locked file whose name holds the bytes, so that a killed job leaves none behind. What is claimed
is a forecast, and strangers claim nothing: whoever runs out of memory asks whether it was shared, and tries
again alone.
"""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stitch_tools.errors import LockedError
from stitch_tools.machine.device_lock import device_lock, lock_path, refuse_after
from stitch_tools.machine.devices import Gpu, resolve_target
from stitch_tools.machine.isolation import BOOTSTRAP
from stitch_tools.protocol.free_memory import available_bytes, total_bytes
from stitch_tools.storage.locks import FileLock, holder

_READ_LIMIT_S = 10.0
_POLL_S = 0.5
_STRANGERS_WAIT_S = 120.0
"""So long a job that must be alone waits for processes that are not ours, which need never end."""
_GPU_SHARE_OF_STRANGERS, _HOST_SHARE_OF_STRANGERS = 0.05, 0.5
"""More than this share of the memory in use, and strangers count as a reason why it ran out: a GPU is ours
as a rule, on the host the system and its user take their part."""


@dataclass(frozen=True)
class MemoryReading:
    """Memory of a device at one moment, whoever holds it."""

    total_bytes: int
    free_bytes: int

    @property
    def used_bytes(self) -> int:
        """What all processes hold."""
        return self.total_bytes - self.free_bytes


@dataclass(frozen=True)
class Waiter:
    """Who waits for memory, and how long."""

    wait_s: float
    purpose: str
    emit: Callable[[str], None] | None = None
    stop: threading.Event | None = None
    """When set, the wait ends."""


@dataclass(frozen=True)
class MemoryClaim:
    """A job's part of a device's memory."""

    memory: "DeviceMemory"
    shared_at_start: bool
    entries: int
    """What the gate counted when it was passed."""
    at_start: MemoryReading
    """When it was let in."""

    def was_shared(self) -> bool:
        """Whether others held memory of the device meanwhile, or may have."""
        return self.shared_at_start or self.memory.entries() != self.entries


class DeviceMemory:
    """Memory of one device, and the claims on it."""

    def __init__(
        self,
        key: str,
        read: Callable[[], MemoryReading],
        *,
        strangers_share: float = _GPU_SHARE_OF_STRANGERS,
    ) -> None:
        """Memory of the device `key` (as in `device_lock`).

        `read` tells how much is free. Where more than `strangers_share` of all is in
        use without a claim, the memory counts as shared.
        """
        self.read = read
        self._strangers_share = strangers_share
        self._stem = lock_path(key).stem
        self._gate_key = f"{self._stem.removeprefix('stitch-')}-memory"

    def entries(self) -> int:
        """A number that changes whenever a job asks for memory."""
        try:
            return lock_path(self._gate_key).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def claimed_bytes(self) -> int:
        """The sum of all claims; files of killed jobs are removed."""
        total = 0
        for path in lock_path(self._gate_key).parent.glob(f"{self._stem}-memory.*.claim"):
            if holder(path):
                total += int(path.name.split(".")[-3])
            else:
                with contextlib.suppress(OSError):  # another user's: it harms nobody
                    path.unlink()
        return total

    def is_shared(self) -> bool:
        """Whether others hold memory of the device now."""
        return bool(self.claimed_bytes()) or self.shared_by_strangers(self.read())

    def shared_by_strangers(self, reading: MemoryReading) -> bool:
        """Whether so much is in use that it may be the reason why memory ran out."""
        return reading.used_bytes > self._strangers_share * reading.total_bytes

    @contextlib.contextmanager
    def claim(
        self,
        forecast_bytes: int,
        waiter: Waiter,
        *,
        alone: bool = False,
    ) -> Generator[MemoryClaim]:
        """Hold a part of the memory inside the block, after waiting until there is room for it.

        A job holds one claim at a time: two that each wait for a second one would wait for each other. Who
        finds no claim of others is let in, whatever its forecast. With `alone` no other job is let in
        meanwhile, and strangers are waited for, too: where they stay, the job runs beside them.

        Raises:
            InterruptedRunError: `stop` was set before.
            LockedError: other jobs of ours still hold too much.
        """
        # Whoever waits for room holds the gate: small claims would overtake a large one for ever.
        with contextlib.ExitStack() as gate:
            gate.enter_context(
                device_lock(
                    self._gate_key,
                    wait_s=waiter.wait_s,
                    purpose=waiter.purpose,
                    emit=waiter.emit,
                    stop=waiter.stop,
                )
            )
            reading = self._await_room(forecast_bytes, waiter, alone=alone)
            shared = bool(self.claimed_bytes()) or self.shared_by_strangers(reading)
            claim = FileLock(self._path(forecast_bytes, alone=alone), purpose=waiter.purpose, mode=0o666)
            claim.acquire()
            entries = self.entries()
        try:
            yield MemoryClaim(self, shared, entries, reading)
        finally:
            claim.path.unlink(missing_ok=True)
            claim.release()

    def _await_room(self, forecast_bytes: int, waiter: Waiter, *, alone: bool) -> MemoryReading:
        """The reading on which the job is let in."""
        start_s, told = time.monotonic(), False
        deadline_s = start_s + waiter.wait_s
        while True:
            refuse_after(waiter.stop)
            claimed, reading, now_s = self.claimed_bytes(), self.read(), time.monotonic()
            impatient = now_s >= min(deadline_s, start_s + _STRANGERS_WAIT_S)
            room = _has_room(forecast_bytes, claimed, reading)
            let_in = not claimed and (room or impatient) if alone else room or not claimed
            if let_in:
                return reading
            words = f"{claimed >> 20} MiB are claimed by other jobs" if claimed else "other processes hold it"
            if now_s >= deadline_s:
                raise LockedError(f"there is no memory left for this job: {words}", hint="wait for them")
            if waiter.emit is not None and not told:
                waiter.emit(f"waiting for memory of the device: {words}")
                told = True
            time.sleep(_POLL_S)

    def _path(self, forecast_bytes: int, *, alone: bool) -> Path:
        # So much that nothing fits beside it.
        nbytes = 1 << 62 if alone else max(1, forecast_bytes)
        name = f"{self._stem}-memory.{nbytes}.{os.getpid()}-{secrets.token_hex(4)}.claim"
        return lock_path(self._gate_key).with_name(name)


def device_memory(target: str) -> DeviceMemory | None:
    """The memory that programs for `target` live in; None where there is no such device here."""
    found = resolve_target(target)
    if not found.available:
        return None
    if found.gpu is None:
        return DeviceMemory("cpu", _read_host, strangers_share=_HOST_SHARE_OF_STRANGERS)
    return DeviceMemory(found.gpu.uuid, partial(read_gpu, found.gpu))


def read_gpu(gpu: Gpu, library: Path | None = None) -> MemoryReading:
    """What the driver says, asked in a process of its own; all of it counts as free where it says nothing.

    `library`: another NVML than the driver's own.
    """
    command = [sys.executable, "-I", "-S", str(BOOTSTRAP), "gpu_state", gpu.uuid]
    command += [str(library)] if library else []
    try:
        asked = subprocess.run(command, input=b"\n", capture_output=True, timeout=_READ_LIMIT_S, check=True)
        total, free = json.loads(asked.stdout)["memory"]
        return MemoryReading(int(total), int(free))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return MemoryReading(gpu.memory_bytes, gpu.memory_bytes)


def _read_host() -> MemoryReading:
    return MemoryReading(total_bytes(), available_bytes())


def _has_room(forecast_bytes: int, claimed_bytes: int, reading: MemoryReading) -> bool:
    # Others hold what is in use and will hold what they claimed: strangers beside claims show in the first.
    return forecast_bytes <= reading.total_bytes - max(reading.used_bytes, claimed_bytes)
