"""Three linear layers of one input, joined by a gate."""

import torch


class Model(torch.nn.Module):
    def __init__(self, width: int = 128):
        super().__init__()
        self.query = torch.nn.Linear(width, width)
        self.key = torch.nn.Linear(width, width)
        self.value = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.query(x) * torch.sigmoid(self.key(x)) + self.value(x)


def get_inputs():
    return [torch.randn(1024, 128)]


def get_init_inputs():
    return []
