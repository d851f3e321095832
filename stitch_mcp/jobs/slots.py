"""How many jobs of a workspace work at once: as many as there are places, one a core."""

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path

from stitch_tools.errors import LockedError
from stitch_tools.machine.devices import usable_cpus
from stitch_tools.storage.locks import FileLock

PLACE_WAIT = "waiting"
"""How the sentence begins that whoever waits for a place says."""
_POLL_S = 0.1
_FEWEST = 2


@contextlib.contextmanager
def place(jobs: Path, say: Callable[[str], None], count: int | None = None) -> Generator[None]:
    """One place held inside the block, after as long a wait as it takes; who waits says so once.

    Args:
        jobs: the folder of the workspace's jobs.
        say: takes a progress sentence.
        count: how many places there are; None: one a CPU that this process may use, at least two.
    """
    number = count or max(_FEWEST, usable_cpus())
    # File locks: they count over all servers of the workspace, and the kernel frees those of a killed
    # process.
    locks = [FileLock(jobs / "places" / str(index), purpose="runs a job") for index in range(number)]
    held = _free(locks)
    if held is None:
        say(f"{PLACE_WAIT}: {number} other jobs of this workspace are at work")
    while held is None:
        time.sleep(_POLL_S)
        held = _free(locks)
    with held:
        yield


def _free(locks: list[FileLock]) -> FileLock | None:
    """The first lock that could be taken."""
    for lock in locks:
        with contextlib.suppress(LockedError):
            lock.acquire()
            return lock
    return None
