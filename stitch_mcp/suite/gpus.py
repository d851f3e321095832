"""Which GPU a run of a sweep gets."""

import threading
from collections.abc import Sequence

from stitch_tools.errors import UsageError
from stitch_tools.machine.devices import GpuSearch


def gpu_pins(text: str, search: GpuSearch) -> tuple[str, ...]:
    """UUIDs of GPUs, for CUDA_VISIBLE_DEVICES, by what a caller wrote: numbers with commas between, or `all`.

    Args:
        text: numbers as CUDA counts the GPUs that are visible here.
        search: those GPUs.

    Raises:
        UsageError: there is no such GPU, or a number comes twice.
    """
    if text.strip() == "all":
        words = [str(gpu.index) for gpu in search.gpus] or [""]
    else:
        words = [word.strip() for word in text.split(",")]
    known = {str(gpu.index): gpu.uuid for gpu in search.gpus}
    here = ", ".join(known) or f"none ({search.problem})"
    for word in words:
        if word not in known:
            raise UsageError(f"there is no GPU number {word!r}", hint=f"GPUs here: {here}")
    if len(set(words)) < len(words):
        raise UsageError(f"--gpus {text} names a GPU twice", hint="--jobs sets how many runs share them")
    return tuple(known[word] for word in words)


class GpuShares:
    """The GPUs of a sweep, each run on the one with the fewest others."""

    def __init__(self, pins: Sequence[str]) -> None:
        """`pins`: values of CUDA_VISIBLE_DEVICES; none leaves the choice to CUDA."""
        self._runs = dict.fromkeys(pins, 0)
        self._lock = threading.Lock()

    def take(self) -> str | None:
        """A GPU for one more run; None where there is no choice."""
        with self._lock:
            if not self._runs:
                return None
            pin = min(self._runs, key=self._runs.__getitem__)
            self._runs[pin] += 1
            return pin

    def give_back(self, pin: str | None) -> None:
        """The run on it has ended."""
        with self._lock:
            if pin is not None:
                self._runs[pin] -= 1
