"""One process times on a device at a time, whoever runs it: users and containers that share a lock folder."""

import contextlib
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

from stitch_tools.errors import InterruptedRunError, LockedError
from stitch_tools.storage.locks import FileLock

_MODE = 0o666
_POLL_S = 0.2
DEVICE_WAIT_S = 600.0
"""So long whoever cannot go on without the device waits for another process that times on it."""


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
    """Hold the device's lock inside the block, waiting up to `wait_s` seconds for its holder.

    Raises:
        InterruptedRunError: `stop` was set before the lock was had.
        LockedError: it is still held; the message says by which process on which host.
        StoreError: the lock folder cannot be written.
    """
    # Users share the lock, each with an umask of their own.
    lock = FileLock(lock_path(device_key), purpose=purpose, mode=_MODE, option="STITCH_LOCK_DIR")
    deadline, told = time.monotonic() + wait_s, False
    while True:
        refuse_after(stop)
        try:
            lock.acquire()
            break
        except LockedError as error:
            if time.monotonic() >= deadline:
                raise LockedError(
                    f"the device is busy: {error.message}", hint="wait for it, or set STITCH_LOCK_DIR"
                ) from error
            if emit is not None and not told:
                emit(f"waiting for the device: {error.message}")
                told = True
            # Not stop.wait(): a signal handler that sets the event while this thread is inside it may hang.
            time.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()


def refuse_after(stop: threading.Event | None) -> None:
    """Nothing, as long as nobody asked to stop.

    Raises:
        InterruptedRunError: somebody did.
    """
    if stop is not None and stop.is_set():
        raise InterruptedRunError("stopped while timing", hint="run the same command again")
