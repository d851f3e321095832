"""Waiting for the GPU with a function that no program can exchange: it is taken before one is loaded."""

from collections.abc import Callable

import torch

_wait: Callable[[], object] | None = getattr(torch._C, "_cuda_synchronize", None)  # pyright: ignore[reportPrivateUsage]


def wait_for_device() -> None:
    """Return when the current device, which is in use, has done everything; at once where torch knows no GPU.

    `torch.cuda.synchronize` looks its function up at each call, so that a program could take the waiting out
    of a timed loop.
    """
    if _wait is not None:
        _wait()
