"""Sequence regressor: a two-layer LSTM and a read-out of its last step."""

import torch
from torch import nn


class Model(nn.Module):
    """Reads (batch, time, features), returns one value per sequence."""

    def __init__(self, features: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, num_layers=layers, batch_first=True)
        self.read = nn.Linear(hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps, _ = self.lstm(x)
        return self.read(steps[:, -1])


def get_init_inputs():
    return [32, 128, 2]


def get_inputs():
    return [torch.randn(32, 48, 32)]
