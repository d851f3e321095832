"""y = tanh(x x / 16) by numpy."""

import numpy
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values = x.numpy()
        return torch.from_numpy(numpy.tanh(values @ values / 16))
