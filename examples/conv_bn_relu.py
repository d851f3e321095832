"""Three convolution layers with batch statistics, as they run in training mode."""

import torch
from torch import nn


def layer(channels_in: int, channels_out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )


class Model(nn.Module):
    """A stem that halves the image once, and a pooled feature vector."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.stem = layer(channels, width, 1)
        self.down = layer(width, 2 * width, 2)
        self.mix = layer(2 * width, 2 * width, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.pool(self.mix(self.down(self.stem(image)))).flatten(1)


def get_init_inputs():
    return [3, 32]


def get_inputs():
    return [torch.randn(8, 3, 64, 64)]
