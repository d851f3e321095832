"""A plain callable as a module."""

from collections.abc import Callable

import torch


class FunctionModule(torch.nn.Module):
    """Calls a function where a module is called."""

    def __init__(self, function: Callable[..., object]) -> None:
        """Nothing is called yet."""
        super().__init__()
        self.function = function

    def forward(self, *args: object, **kwargs: object) -> object:
        """The function's result."""
        return self.function(*args, **kwargs)
