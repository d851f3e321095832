"""One LSTM layer over a sequence."""

import torch


class Model(torch.nn.Module):
    def __init__(self, inputs: int = 128, hidden: int = 256):
        super().__init__()
        self.lstm = torch.nn.LSTM(inputs, hidden)

    def forward(self, x):
        return self.lstm(x)[0]


def get_inputs():
    return [torch.randn(512, 10, 128)]


def get_init_inputs():
    return []
