"""OpenMP threads that sleep between loops, in processes that take turns and are never timed."""

import ctypes
import os
import re
import threading
from functools import cache
from pathlib import Path

import torch

_LIBRARY = re.compile(r"\S*/libgomp[^/\s]*\.so[.\d]*$", re.MULTILINE)
_SEMAPHORE_BYTES = 64  # at least sizeof(sem_t), which is 32 where we run
_WAITING_TEAM = 2


@cache
def rest_between_loops() -> bool:
    """Whether the threads of GNU's OpenMP sleep at once when they have nothing to do, from now on.

    Left alone they spin for milliseconds after each parallel loop. Judge and program compute in turns, so
    what one does after its loops it takes from the other's: a check of a program of 50 us took three times as
    long for it on two idle processors, and five times on busy ones. The runtime spins a thousandth as long
    once a process has more of its threads than there are processors, and asks for that at each loop. So one
    more team waits here, for a semaphore that nobody posts. Not for a process that is timed: a user's eager
    PyTorch spins, too.
    """
    if torch.get_num_threads() < len(os.sched_getaffinity(0)):
        return False  # spinning threads are in nobody's way
    result = _LIBRARY.search(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))
    if result is None:
        return False  # another runtime
    runtime = ctypes.CDLL(result.group(0))
    semaphore = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
    process = ctypes.CDLL(None)
    if process.sem_init(semaphore, 0, 0) != 0:
        return False
    wait = ctypes.cast(process.sem_wait, ctypes.c_void_p)

    def hold() -> None:
        while True:  # a signal ends a wait
            runtime.GOMP_parallel(wait, semaphore, ctypes.c_uint(_WAITING_TEAM), ctypes.c_uint(0))

    threading.Thread(target=hold, name="resting", daemon=True).start()
    return True
