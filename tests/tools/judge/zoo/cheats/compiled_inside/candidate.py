"""y = tanh(x x / 16)."""

import torch
from torch import nn


@torch.compile(dynamic=False)
def compute(x):
    return torch.tanh(torch.mm(x, x) / 16)


class ModelNew(nn.Module):
    def forward(self, x):
        return compute(x)
