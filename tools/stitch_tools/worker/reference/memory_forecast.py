"""Is there memory for the reference in fp64, and where? A forecast from what its own calls took."""

import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from stitch_tools.confine.free_memory import available_bytes
from stitch_tools.confine.sandbox import mapped_data_bytes
from stitch_tools.worker.reference.kept_memory import (
    give_back_kept_memory,
    keep_freed_memory,
    stop_keeping_memory,
)

SHARE_OF_FREE = 0.7
WIDE_FACTOR = 3
"""fp64 copies of everything that one call touches, and the temporaries of widening."""
# How many times what an oracle needs has to be free before freed memory is kept.
_PLENTY = 4
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class OraclePlace:
    """Where the oracle runs."""

    kind: str
    """fp64, or fp64-cpu: the reference is on a GPU that has no room for it."""
    device: str | None
    """What everything is copied to; None: where it lies."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was missing, of whatever device."""
    words = str(error)
    known = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
    return known or "allocate memory" in words or "bad_alloc" in words


class Forecast:
    """What a call of the reference takes beside its weights, by the calls that were measured."""

    def __init__(self, device: str) -> None:
        self._gpu = torch.device(device) if device.startswith("cuda") else None
        self._call_bytes = 0
        self._input_bytes = 0
        """Of the largest call that was measured."""
        self._weight_bytes = 0
        self._ran_wide = False
        self._keeps = False
        """Whether freed memory is kept now."""

    def measure(self, input_bytes: int, call: Callable[[], ResultT]) -> ResultT:
        """What `call` returns; how much memory it took is remembered."""
        if self._gpu is not None:
            torch.cuda.reset_peak_memory_stats(self._gpu)
            before = torch.cuda.memory_allocated(self._gpu)
            result = call()
            self._note(torch.cuda.max_memory_allocated(self._gpu) - before, input_bytes)
            return result
        # Before the call: a heap with holes grows by what does not fit into them.
        self._make_room(input_bytes)
        before = _resident_bytes()
        result = call()
        # The peak is that of the whole life of this process: once the oracle ran it is the oracle's.
        if not self._ran_wide:
            self._note(_peak_bytes() - before, input_bytes)
        return result

    def places(self, module: torch.nn.Module, input_bytes: int) -> tuple[OraclePlace, ...]:
        """Where there is room for the module in fp64 on such inputs, the better place first."""
        self._weight_bytes = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
        needed = self._needed(input_bytes)
        gpu_free = None if self._gpu is None else _free_gpu_bytes(self._gpu)
        self._make_room(input_bytes)
        host_free = free_bytes()
        if needed > SHARE_OF_FREE * host_free:
            give_back_kept_memory()
            host_free = free_bytes()
        found = places_for(needed, host_free_bytes=host_free, gpu_free_bytes=gpu_free)
        if found:
            self._ran_wide = True
            # Not before: what is kept would hide from `measure` what a call takes. Nor where memory is
            # scarce: a heap with holes needs more of it.
            if _PLENTY * needed <= host_free:
                self._keeps = keep_freed_memory(host_free)
        return found

    def _needed(self, input_bytes: int) -> float:
        """What the oracle takes on such inputs."""
        grown = max(1.0, input_bytes / self._input_bytes) if self._input_bytes else 1.0
        return 2 * self._weight_bytes + WIDE_FACTOR * grown * self._call_bytes

    def _make_room(self, input_bytes: int) -> None:
        """Keep no memory where such inputs make it scarce."""
        if self._keeps and _PLENTY * self._needed(input_bytes) > free_bytes():
            stop_keeping_memory()
            self._keeps = False

    def _note(self, taken: int, input_bytes: int) -> None:
        self._call_bytes = max(self._call_bytes, taken)
        self._input_bytes = max(self._input_bytes, input_bytes)


def places_for(
    needed_bytes: float, *, host_free_bytes: int, gpu_free_bytes: int | None
) -> tuple[OraclePlace, ...]:
    """Where so much memory is; `gpu_free_bytes` is None for a reference on the host."""
    on_host = needed_bytes <= SHARE_OF_FREE * host_free_bytes
    if gpu_free_bytes is None:
        return (OraclePlace("fp64", None),) if on_host else ()
    on_gpu = needed_bytes <= SHARE_OF_FREE * gpu_free_bytes
    places = (OraclePlace("fp64", None), on_gpu), (OraclePlace("fp64-cpu", "cpu"), on_host)
    return tuple(place for place, fits in places if fits)


def free_bytes() -> int:
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


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()
