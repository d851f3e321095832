"""y = tanh(x x / 16)."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        product = torch.ops.aten.mm.default(x, x)
        return torch.ops.aten.tanh.default(torch.ops.aten.div.Scalar(product, 16))
