"""Memory that the reference server keeps between operations, instead of having the system clear it again."""

import ctypes
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_MOST_BYTES = (1 << 31) - 1  # mallopt takes an int
_SHARE_OF_FREE = 8
# What the C library starts with.
_GLIBC_TRIM_BYTES, _GLIBC_MAPS = 128 << 10, 1 << 16


def keep_freed_memory(free_bytes: int) -> bool:
    """Whether the C library from now on hands out freed memory again, of any size.

    Left to itself it maps each large tensor anew, and the system clears it page by page. Comparing outputs
    makes many tensors that live shortly: on 4096 x 4096 floats that was most of the judge's time. At most an
    eighth of `free_bytes`, and 2 GiB, stays at the end of the heap. The allocations of processes that are
    timed are set in worker/timed.py.
    """
    mallopt = _function("mallopt")
    if mallopt is None:  # another C library
        return False
    kept = min(free_bytes // _SHARE_OF_FREE, _MOST_BYTES)
    return bool(mallopt(_M_TRIM_THRESHOLD, kept)) and bool(mallopt(_M_MMAP_MAX, 0))


def stop_keeping_memory() -> None:
    """Large tensors get memory of their own again, which goes back with them; what is kept goes back now."""
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _GLIBC_TRIM_BYTES)
        mallopt(_M_MMAP_MAX, _GLIBC_MAPS)
    give_back_kept_memory()


def give_back_kept_memory() -> None:
    """Return to the system all that is kept and not in use."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _function(name: str) -> Callable[..., int] | None:
    """A function of the C library; None where it has none of this name."""
    return getattr(ctypes.CDLL(None), name, None)
