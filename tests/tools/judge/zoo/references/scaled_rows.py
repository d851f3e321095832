"""Twice a matrix, half of whose rows are a hundred times smaller than the others."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * 2


def get_inputs():
    return [torch.randn(64, 256) * torch.tensor([1.0, 0.01]).repeat(32)[:, None]]


def get_init_inputs():
    return []
