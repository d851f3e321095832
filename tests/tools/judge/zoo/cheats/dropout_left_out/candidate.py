"""y = 3 x."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x * 3
