"""Two linear layers with ReLU between them."""

import torch


class Model(torch.nn.Module):
    def __init__(self, inputs: int = 128, hidden: int = 256, outputs: int = 64):
        super().__init__()
        self.up = torch.nn.Linear(inputs, hidden)
        self.down = torch.nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def get_inputs():
    return [torch.randn(1024, 128)]


def get_init_inputs():
    return []
