"""Named ranges that a profiler records: iterations, calls, modules. Both profilers get the same names."""

import contextlib
from collections.abc import Generator
from typing import Protocol

import torch

ITERATION = "stitch:iteration"
"""One forward and the wait for its end, without any range inside but the call."""
CALL = "stitch:call"
"""The forward alone."""
NAMED = "stitch:named"
"""One more iteration, with a range for each module and operator: its times are not used."""
CALIBRATION = "stitch:calibration"
"""Launches of short kernels, whose recorded time says what recording adds."""
MODULE = "stitch:module:"
"""Followed by the module's path, a bar, and its class."""


class Marker(Protocol):
    """Begins and ends ranges of this thread."""

    def begin(self, name: str) -> None:
        """Open a range inside the one that is open."""
        ...

    def end(self) -> None:
        """Close the range that was opened last."""
        ...


class NvtxMarker:
    """Ranges by NVTX, for nsys."""

    def begin(self, name: str) -> None:
        """Open a range."""
        torch.cuda.nvtx.range_push(name)

    def end(self) -> None:
        """Close it."""
        torch.cuda.nvtx.range_pop()


class KinetoMarker:
    """Ranges of PyTorch's own profiler."""

    def __init__(self) -> None:
        self._open: list[torch.profiler.record_function] = []

    def begin(self, name: str) -> None:
        """Open a range."""
        opened = torch.profiler.record_function(name)
        opened.__enter__()
        self._open.append(opened)

    def end(self) -> None:
        """Close it."""
        self._open.pop().__exit__(None, None, None)


@contextlib.contextmanager
def marked(marker: Marker, name: str) -> Generator[None]:
    """A range around the block."""
    marker.begin(name)
    try:
        yield
    finally:
        marker.end()


@contextlib.contextmanager
def marked_modules(marker: Marker, module: torch.nn.Module | None) -> Generator[None]:
    """A range around each call of each submodule, while the block runs."""
    handles: list[torch.utils.hooks.RemovableHandle] = []
    for path, child in module.named_modules() if module is not None else ():
        name = f"{MODULE}{path}|{type(child).__name__}"
        # Scripted modules and the like take no hooks: their time is their parent's.
        with contextlib.suppress(RuntimeError, AttributeError):
            before = child.register_forward_pre_hook(_opening(marker, name))
            handles.append(before)
            # Also after an exception, else every later range would lie inside this one.
            handles.append(child.register_forward_hook(_closing(marker), always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _opening:  # noqa: N801 (a hook with a name in its state: torch may copy modules with their hooks)
    def __init__(self, marker: Marker, name: str) -> None:
        self.marker, self.name = marker, name

    def __call__(self, *_: object) -> None:
        self.marker.begin(self.name)


class _closing:  # noqa: N801
    def __init__(self, marker: Marker) -> None:
        self.marker = marker

    def __call__(self, *_: object) -> None:
        self.marker.end()
