"""Copies of what a program computed, in which no code of the program takes part."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

# Taken before a program is loaded, which could exchange them. The two guards silence classes and modes; torch
# has no public ones that do.
_copy: Callable[[torch.Tensor, torch.Tensor], object] = torch.Tensor.copy_
_guards: Any = torch._C  # pyright: ignore[reportPrivateUsage]
_without_classes, _without_modes = _guards.DisableTorchFunction, _guards._DisableTorchDispatch


def copy_plainly(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy each value into its target, where these are not one tensor.

    A mode that the program left switched on could compute there what forward left out.
    """
    with _without_classes(), _without_modes():
        for target, value in zip(targets, values, strict=True):
            if target is not value:
                _copy(target, value)
