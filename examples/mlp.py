"""Scores rows of a table: two hidden layers, each normalised and activated."""

import torch
from torch import nn


class Model(nn.Module):
    """Linear, LayerNorm and GELU twice, then one logit per class."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.up = nn.Linear(features, hidden)
        self.up_norm = nn.LayerNorm(hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.mix_norm = nn.LayerNorm(hidden)
        self.act = nn.GELU()
        self.logits = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, features) to (rows, classes)."""
        x = self.act(self.up_norm(self.up(x)))
        x = self.act(self.mix_norm(self.mix(x)))
        return self.logits(x)


def get_init_inputs():
    """Features, hidden width, classes."""
    return [32, 64, 8]


def get_inputs():
    """One batch of rows."""
    return [torch.randn(16384, 32)]
