"""A chain of elementwise operations with a gate: five passes over memory in eager PyTorch."""

import torch


class Model(torch.nn.Module):
    def __init__(self, width: int = 1024):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.shift = torch.nn.Parameter(torch.randn(width))

    def forward(self, x, gate):
        return torch.nn.functional.silu(x * self.gain + self.shift) * gate + x


def get_inputs():
    return [torch.randn(2048, 1024), torch.randn(2048, 1024)]


def get_init_inputs():
    return []
