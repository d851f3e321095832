"""y = tanh(x x / 16)."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(torch.mm(x, x) / 16)


class ModelNew(Model):
    pass
