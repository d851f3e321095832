"""A weighted running sum over time."""

import torch


class Model(torch.nn.Module):
    def forward(self, x, weight):
        return torch.cumsum(x * weight, dim=1)


def get_inputs():
    return [torch.randn(2, 16384, 32), torch.rand(32)]


def get_init_inputs():
    return []
