"""LayerNorm over the channels of images, which come channels-first and leave channels-last."""

import torch


class Model(torch.nn.Module):
    def __init__(self, channels: int = 96):
        super().__init__()
        self.norm = torch.nn.LayerNorm(channels)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1))


def get_inputs():
    return [torch.randn(8, 96, 56, 56)]


def get_init_inputs():
    return []
