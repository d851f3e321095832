"""An advisory file lock that names its holder. POSIX only; imported inside the functions that need it."""

import errno
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from stitch_tools.errors import LockedError, StoreError
from stitch_tools.storage.store import PlaceOption, storing

_GLANCE_S = 1.0
"""How long `holder` may keep others from a lock, on a machine that is far too busy."""


class FileLock:
    """flock on `path`, exclusive unless `shared`, held until `release` or the end of the process.

    The file's content is the holder's pid, host and purpose; the lock itself is the kernel's, so a killed
    holder leaves nothing to clean up. A forked child must close the descriptor, else it keeps the lock alive;
    it is opened close-on-exec.
    """

    def __init__(
        self,
        path: Path,
        *,
        purpose: str = "",
        mode: int | None = None,
        option: PlaceOption = "--workspace",
        shared: bool = False,
    ) -> None:
        """Nothing is touched before `acquire`.

        `mode`: permissions of a file that is made, whatever the umask; `option` is what sets its place;
        `shared`: others may hold it at the same time that ask for no more than that.
        """
        self.path = path
        self.purpose = purpose
        self.mode = mode
        self.option: PlaceOption = option
        self.shared = shared
        self._handle: int | None = None

    def acquire(self, *, wait_s: float = 0.0) -> None:
        """Take the lock, waiting at most `wait_s` seconds.

        Raises:
            LockedError: another process holds it; the message names pid, host and purpose.
            StoreError: the file cannot be made, or the file system has no flock.
        """
        import fcntl

        deadline = time.monotonic() + wait_s
        while True:
            with storing(self.path, self.option):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                handle = self._open()
            try:
                fcntl.flock(handle, (fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                # Where its holder removed the file, whoever comes now locks another one of that name.
                if self._is_there(handle):
                    self._describe(handle)
                    self._handle = handle
                    return
            except BlockingIOError as error:
                glance_s = _GLANCE_S if _is_only_looked_at(handle) else 0.0
                if time.monotonic() >= deadline + glance_s:
                    raise LockedError(
                        f"{self.path.name} is held by {_described(handle)}",
                        hint="wait for it, or stop that process",
                    ) from error
                time.sleep(0.005 if glance_s else 0.05)
            except OSError as error:
                if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise StoreError(
                        f"the file system of {self.path.parent} has no file locks",
                        hint=f"choose a folder on a local disk with {self.option}",
                    ) from error
                raise
            finally:
                if self._handle is None:
                    os.close(handle)

    def _open(self) -> int:
        # Without O_CREAT first: Linux refuses it for another user's file in a folder like /tmp.
        # O_NOFOLLOW: a link that somebody put into a shared folder must not make us empty another file.
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self.path, flags)
        except FileNotFoundError:
            handle = os.open(self.path, flags | os.O_CREAT, 0o644 if self.mode is None else self.mode)
        if self.mode is not None:
            os.fchmod(handle, self.mode)
        return handle

    def _is_there(self, handle: int) -> bool:
        """Whether the path still names the file that was opened."""
        try:
            return os.path.samestat(self.path.stat(follow_symlinks=False), os.fstat(handle))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def fileno(self) -> int:
        """The held lock's descriptor: a child that inherits it holds the lock as long as it lives.

        Raises:
            ValueError: the lock is not held.
        """
        if self._handle is None:
            raise ValueError("the lock is not held")
        return self._handle

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._handle is not None

    def __enter__(self) -> Self:
        if not self.held:
            self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _describe(self, handle: int) -> None:
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "purpose": self.purpose})
        with storing(self.path, self.option):
            os.ftruncate(handle, 0)
            os.pwrite(handle, text.encode("utf-8"), 0)


def _is_only_looked_at(handle: int) -> bool:
    """Whether those in the way share the lock, as `holder` does for a moment."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    # At once: two that wait would keep each other out.
    fcntl.flock(handle, fcntl.LOCK_UN)
    return True


def holder(path: Path) -> str:
    """Who holds the lock on `path`, as process, host and purpose; "" where nobody does or none can look."""
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        # Shared: two that look at the same time do not take each other for the holder.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _described(handle)
    except OSError:
        return ""
    finally:
        os.close(handle)
    return ""


def _described(handle: int) -> str:
    """The holder as it wrote itself down."""
    try:
        found = json.loads(os.pread(handle, 4096, 0))
        return f"process {found['pid']} on {found['host']} ({found['purpose'] or 'no purpose given'})"
    except (ValueError, KeyError, TypeError):
        return "another process"
