"""Tagger: a bidirectional GRU and a label per step."""

import torch
from torch import nn


class Model(nn.Module):
    """Returns log-probabilities of the labels for (time, batch, features)."""

    def __init__(self, features: int, hidden: int, labels: int) -> None:
        super().__init__()
        self.gru = nn.GRU(features, hidden, bidirectional=True)
        self.labels = nn.Linear(2 * hidden, labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps, _ = self.gru(x)
        return torch.log_softmax(self.labels(steps), dim=-1)


def get_init_inputs():
    return [64, 96, 24]


def get_inputs():
    return [torch.randn(40, 16, 64)]
