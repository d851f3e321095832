import torch
from torch import nn


class Model(nn.Module):
    """Sliding-window smoothing, then a gated cumulative sum: nothing of it has a template."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.randn(64))

    def forward(self, x):
        g = torch.sigmoid(self.gate) * torch.tanh(x)
        c = torch.cumsum(g, dim=1)
        return c / (1.0 + c.abs().amax(dim=1, keepdim=True))


def get_inputs():
    return [torch.randn(64, 256, 64)]
