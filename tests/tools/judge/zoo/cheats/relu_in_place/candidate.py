"""y = 2 relu(x), by way of x."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.mul_(2).clamp_(min=0)
