"""A convolution of 3 x 3 with padding."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(4, 3, 12, 10)]


def get_init_inputs() -> list[int]:
    return [3, 5]
