"""Logarithm of numbers of both signs: NaN for half of them."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.log(x)


def get_inputs():
    return [torch.randn(64, 128)]


def get_init_inputs():
    return []
