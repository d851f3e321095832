"""Reading files that somebody names: a pipe, a device or a huge file must not hang us or fill the memory."""

import errno
import os
import stat
from pathlib import Path

LARGEST_BYTES = 16 << 20
"""Far above any settings, task file or Python source."""


def read_small(path: Path, largest_bytes: int = LARGEST_BYTES) -> bytes:
    """The content of a regular file, links followed.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger; `strerror` says which.
    """
    # Without O_NONBLOCK opening a pipe waits for whoever writes to it.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        # A file below /proc says that its size is 0, so only reading shows how large it is.
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(largest_bytes + 1)
    finally:
        os.close(handle)
    if len(data) > largest_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {largest_bytes >> 20} MiB", str(path))
    return data
