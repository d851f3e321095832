"""Dropout in training, then a factor."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.25)

    def forward(self, x):
        return self.dropout(x) * 3


def get_inputs():
    return [torch.randn(64, 128)]


def get_init_inputs():
    return []
