"""One GRU layer over a sequence."""

import torch


class Model(torch.nn.Module):
    def __init__(self, inputs: int = 64, hidden: int = 96):
        super().__init__()
        self.gru = torch.nn.GRU(inputs, hidden)

    def forward(self, x):
        return self.gru(x)[0]


def get_inputs():
    return [torch.randn(40, 16, 64)]


def get_init_inputs():
    return []
