"""The reference of linear_relu.cpp. Inputs are never negative: only drawn signs reach the other half."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(8, 16)]


def get_init_inputs() -> list[int]:
    return [16, 33]
