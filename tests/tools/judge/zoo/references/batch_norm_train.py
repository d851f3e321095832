"""Batch norm with the batch's own statistics, as a module in training mode has it."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(8, 6, 5, 7)]


def get_init_inputs() -> list[int]:
    return [6]
