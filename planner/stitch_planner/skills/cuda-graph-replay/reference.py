"""Twenty-four small layers one after the other."""

import torch


class Model(torch.nn.Module):
    def __init__(self, layers: int = 24, width: int = 128):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def get_inputs():
    return [torch.randn(16, 128)]


def get_init_inputs():
    return []
