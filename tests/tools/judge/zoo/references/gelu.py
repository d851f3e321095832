"""GELU by the error function."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(64, 90)]


def get_init_inputs() -> list[int]:
    return []
