"""Memory for the reference in fp64: where there may be enough of it, and what stays with this process."""

import contextlib
import ctypes
import resource
from dataclasses import dataclass

import torch

from stitch_tools.confine.sandbox import mapped_data_bytes
from stitch_tools.protocol.free_memory import available_bytes

_SHARE_OF_FREE = 0.7
# How many times what an oracle surely needs has to be free before freed memory is kept.
_PLENTY = 16
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_MOST_KEPT_BYTES = (1 << 31) - 1  # mallopt takes an int
_KEPT_SHARE_OF_FREE = 8
_MOST_KEPT_GPU_BYTES = 1 << 30


@dataclass(frozen=True)
class OraclePlace:
    """Where the oracle runs."""

    kind: str
    """fp64, or fp64-cpu: the reference is on a GPU that has no room for it."""
    device: str | None
    """What everything is copied to; None: where it lies."""


def oracle_places(device: str, needed_bytes: int) -> tuple[OraclePlace, ...]:
    """Where an oracle that surely takes `needed_bytes` may fit, the better place first.

    What forward takes for itself is not known: where it is too much, the limit of this process or the GPU's
    allocator refuses it, and the next place is tried.
    """
    host_free = _free_bytes()
    if needed_bytes > _SHARE_OF_FREE * host_free:
        give_back_kept_memory()
        host_free = _free_bytes()
    gpu = torch.device(device) if device.startswith("cuda") else None
    gpu_free = None if gpu is None else _free_gpu_bytes(gpu)
    # Where memory is scarce nothing is kept: a heap with holes needs more of it.
    if _PLENTY * needed_bytes <= host_free:
        keep_freed_memory(host_free)
    return places_for(needed_bytes, host_free_bytes=host_free, gpu_free_bytes=gpu_free)


def places_for(
    needed_bytes: float, *, host_free_bytes: int, gpu_free_bytes: int | None
) -> tuple[OraclePlace, ...]:
    """Where so much memory is; `gpu_free_bytes` is None for a reference on the host."""
    on_host = needed_bytes <= _SHARE_OF_FREE * host_free_bytes
    if gpu_free_bytes is None:
        return (OraclePlace("fp64", None),) if on_host else ()
    on_gpu = needed_bytes <= _SHARE_OF_FREE * gpu_free_bytes
    places = (OraclePlace("fp64", None), on_gpu), (OraclePlace("fp64-cpu", "cpu"), on_host)
    return tuple(place for place, fits in places if fits)


def keep_freed_memory(free_bytes: int) -> bool:
    """Whether the C library from now on hands out freed memory again, of any size.

    Left to itself it maps each large tensor anew, and the system clears it page by page. Comparing outputs
    makes many tensors that live shortly: on 4096 x 4096 floats that was most of the judge's time. At most an
    eighth of `free_bytes`, and 2 GiB, stays at the end of the heap. The allocations of processes that are
    timed are set in worker/timed.
    """
    libc, kept = ctypes.CDLL(None), min(free_bytes // _KEPT_SHARE_OF_FREE, _MOST_KEPT_BYTES)
    return bool(libc.mallopt(_M_TRIM_THRESHOLD, kept)) and bool(libc.mallopt(_M_MMAP_MAX, 0))


def give_back_kept_memory() -> None:
    """Return to the system all that is kept and not in use."""
    ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def give_back_gpu_memory() -> None:
    """Return to the GPU what PyTorch's allocator keeps of freed tensors, beyond a gibibyte.

    After an oracle that was tens of gigabytes; programs, baselines and other jobs need them next.
    """
    if torch.cuda.is_initialized():
        kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if kept > _MOST_KEPT_GPU_BYTES:
            # A reference that broke the context is told of by its own error, not by this one.
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()


def _free_bytes() -> int:
    """Host memory that this process may still take: what the machine has, within its own limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    available = available_bytes()
    if limit != resource.RLIM_INFINITY:
        available = min(available, limit - mapped_data_bytes())
    return max(0, available)


def _free_gpu_bytes(device: torch.device) -> int:
    # What torch keeps of freed memory is taken from first.
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept
