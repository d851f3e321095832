"""A projection of every time step at once, then a recurrence with one decay per channel."""

import torch
from torch import nn

STEPS, BATCH, WIDTH = 64, 32, 256


class Model(nn.Module):
    """x [STEPS, BATCH, WIDTH] to the last state [BATCH, WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.decay = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected = self.project(x)
        state = torch.zeros_like(projected[0])
        for step in range(x.shape[0]):
            state = torch.tanh(projected[step] + self.decay * state)
        return state


def get_inputs() -> list[torch.Tensor]:
    """One sequence of a batch."""
    return [torch.randn(STEPS, BATCH, WIDTH)]


def get_init_inputs() -> list[object]:
    """The constructor takes nothing."""
    return []
