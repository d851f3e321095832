"""The mean over the batch, once."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.mean(dim=0, keepdim=True)
