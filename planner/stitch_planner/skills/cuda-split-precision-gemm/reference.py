"""A linear layer with ReLU, in float32."""

import torch


class Model(torch.nn.Module):
    def __init__(self, inputs: int = 1024, outputs: int = 1024):
        super().__init__()
        self.linear = torch.nn.Linear(inputs, outputs)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(1024, 1024)]


def get_init_inputs():
    return []
