"""ReLU of so many numbers that a few of them hardly ever are among those that differ."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.rand(512, 1024)]


def get_init_inputs():
    return []
