"""The mean over the batch, repeated for every row."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.mean(dim=0, keepdim=True).expand_as(x).contiguous()


def get_inputs():
    return [torch.randn(64, 128)]


def get_init_inputs():
    return []
