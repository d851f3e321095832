"""One process times on a device at a time, and nobody else uses the device meanwhile.

A timing holds the device's lock alone. On a GPU, whatever else runs there (requests of checks, observations)
shares the lock for as long as one request takes. Both take turns: a timing that waits bars the requests that
come after it, so that a stream of these cannot keep it out, and requests that waited for the end of one
timing go before the next. The locks are the kernel's: a killed holder leaves none behind. They hold for all
users and containers that share a lock folder.
"""

import contextlib
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path

from stitch_tools.errors import InterruptedRunError, LockedError
from stitch_tools.machine.devices import resolve_target
from stitch_tools.storage.locks import FileLock, holder

_MODE = 0o666
_POLL_S = 0.2
_SHARED_POLL_S = 0.02
_HEAD_START_S = 5 * _SHARED_POLL_S
"""So long after a timing the next one leaves the device to the requests that waited."""
DEVICE_WAIT, DEVICE_FREE = "waiting for the device", "the device is free"
"""How the sentences begin that whoever waits for it says, at first and at last."""
DEVICE_WAIT_S = 600.0
"""So long whoever cannot go on without the device waits for another process that times on it."""


class _Held(threading.local):
    """What this thread holds, so that it does not wait for itself."""

    def __init__(self) -> None:
        self.keys: set[str] = set()


_held = _Held()


def lock_path(device_key: str) -> Path:
    """The lock file of one device: `cpu` is this machine's, anything else a GPU's UUID."""
    folder = Path(os.environ.get("STITCH_LOCK_DIR") or tempfile.gettempdir())
    key = f"cpu-{socket.gethostname()}" if device_key == "cpu" else device_key
    return folder / f"stitch-{re.sub(r'[^A-Za-z0-9._-]', '-', key)}.lock"


@contextlib.contextmanager
def device_lock(
    device_key: str,
    *,
    wait_s: float,
    purpose: str = "timing",
    emit: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
) -> Generator[None]:
    """Hold the device alone inside the block, waiting up to `wait_s` seconds for those that use it.

    Raises:
        InterruptedRunError: `stop` was set before the lock was had.
        LockedError: it is still held; the message says by which process on which host.
        StoreError: the lock folder cannot be written.
    """
    deadline_s = time.monotonic() + wait_s
    told: list[str] = []

    def say(message: str) -> None:
        """The first message alone."""
        if emit is not None and not told:
            told.append(message)
            emit(message)

    with contextlib.ExitStack() as held:
        with _file_lock(_queue_key(device_key), purpose) as queue:
            _await(queue.acquire, deadline_s, say, stop)
            # Nobody else can begin one, as long as we hold the queue.
            if _await(partial(_refuse_during_timing, device_key), deadline_s, say, stop):
                time.sleep(_HEAD_START_S)
            lock = held.enter_context(_file_lock(device_key, purpose))
            _await(lock.acquire, deadline_s, say, stop)
        held.enter_context(_noted(device_key))
        if emit is not None and told:
            emit(DEVICE_FREE)
        yield


@contextlib.contextmanager
def shared_device(device_key: str | None, *, purpose: str, wait_s: float = DEVICE_WAIT_S) -> Generator[None]:
    """Use the device inside the block beside others that only use it; no timing runs meanwhile.

    Nothing happens where this thread holds the device already, and for the key None.

    Raises:
        LockedError: another process times on it, or waited for that before, for more than `wait_s` seconds.
        StoreError: the lock folder cannot be written.
    """
    if device_key is None or device_key in _held.keys:
        yield
        return
    queue = lock_path(_queue_key(device_key))
    was_timed = False

    def join() -> None:
        nonlocal was_timed
        try:
            lock.acquire()
        except LockedError:
            was_timed = True
            raise
        # Whoever waits for the device alone holds the queue until it has it.
        if not was_timed and (first := holder(queue)):
            lock.release()
            raise LockedError(f"{first} is to time on it")

    with _file_lock(device_key, purpose, shared=True) as lock:
        _await(join, time.monotonic() + wait_s, None, None, poll_s=_SHARED_POLL_S)
        with _noted(device_key):
            yield


def shared_key(target: str) -> str | None:
    """What `shared_device` asks for on behalf of a target: the UUID of its GPU, None for a CPU.

    On a CPU only timings exclude each other: its cores are shared out by the system.
    """
    gpu = resolve_target(target).gpu if target != "cpu" else None
    return None if gpu is None else gpu.uuid


def refuse_after(stop: threading.Event | None) -> None:
    """Nothing, as long as nobody asked to stop.

    Raises:
        InterruptedRunError: somebody did.
    """
    if stop is not None and stop.is_set():
        raise InterruptedRunError("stopped while timing", hint="run the same command again")


def _queue_key(device_key: str) -> str:
    return f"{device_key}-next"


@contextlib.contextmanager
def _file_lock(device_key: str, purpose: str, *, shared: bool = False) -> Generator[FileLock]:
    """A lock that is not taken yet, and given back at the end of the block."""
    # Users share the lock, each with an umask of their own.
    lock = FileLock(
        lock_path(device_key), purpose=purpose, mode=_MODE, option="STITCH_LOCK_DIR", shared=shared
    )
    try:
        yield lock
    finally:
        lock.release()


def _refuse_during_timing(device_key: str) -> None:
    path = lock_path(device_key)
    # Of those that share the lock none counts as its holder.
    if first := holder(path):
        raise LockedError(f"{path.name} is held by {first}")


def _await(
    take: Callable[[], None],
    deadline_s: float,
    emit: Callable[[str], None] | None,
    stop: threading.Event | None,
    *,
    poll_s: float = _POLL_S,
) -> bool:
    """Try until `take` raises no LockedError; whether it did at first.

    Raises:
        InterruptedRunError: `stop` was set before.
        LockedError: it is held at the deadline.
    """
    waited = False
    while True:
        refuse_after(stop)
        try:
            take()
            return waited
        except LockedError as error:
            if time.monotonic() >= deadline_s:
                raise LockedError(
                    f"the device is busy: {error.message}", hint="wait for it, or set STITCH_LOCK_DIR"
                ) from error
            if emit is not None:
                emit(f"{DEVICE_WAIT}: {error.message}")
            waited = True
            # Not stop.wait(): a signal handler that sets the event while this thread is inside it may hang.
            time.sleep(poll_s)


@contextlib.contextmanager
def _noted(device_key: str) -> Generator[None]:
    _held.keys.add(device_key)
    try:
        yield
    finally:
        _held.keys.discard(device_key)
