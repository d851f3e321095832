"""Copying and waiting by functions that no program can exchange: they are taken before one is loaded."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

# The two guards silence classes and modes; torch has no public ones that do.
_copy: Callable[[torch.Tensor, torch.Tensor], object] = torch.Tensor.copy_
_guards: Any = torch._C  # pyright: ignore[reportPrivateUsage]
_without_classes, _without_modes = _guards.DisableTorchFunction, _guards._DisableTorchDispatch

_wait: Callable[[], object] | None = getattr(torch._C, "_cuda_synchronize", None)  # pyright: ignore[reportPrivateUsage]


def copy_plainly(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy each value into its target, where these are not one tensor.

    A mode that the program left switched on could compute there what forward left out.
    """
    with _without_classes(), _without_modes():
        for target, value in zip(targets, values, strict=True):
            if target is not value:
                _copy(target, value)


def wait_for_device() -> None:
    """Return when the current device, which is in use, has done everything; at once where torch knows no GPU.

    `torch.cuda.synchronize` looks its function up at each call, so that a program could take the waiting out
    of a timed loop.
    """
    if _wait is not None:
        _wait()
