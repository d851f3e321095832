"""y = tanh(x x / 16)."""

import torch
from torch import nn


def compute(x):
    return torch.tanh(torch.mm(x, x) / 16)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.traced = torch.jit.trace(compute, (torch.ones(4, 4),))

    def forward(self, x):
        return self.traced(x)
