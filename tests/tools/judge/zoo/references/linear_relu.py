"""A linear layer and ReLU; its inputs are never negative."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)

    def forward(self, x):
        return torch.relu(self.fc(x))


def get_inputs():
    return [torch.rand(32, 64)]


def get_init_inputs():
    return [64, 96]
