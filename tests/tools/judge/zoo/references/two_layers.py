"""Two linear layers with a GELU between them."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.up = nn.Linear(inputs, hidden)
        self.act = nn.GELU()
        self.down = nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(32, 40)]


def get_init_inputs() -> list[int]:
    return [40, 56, 24]
