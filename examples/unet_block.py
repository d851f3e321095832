"""One level of a U-Net: encode, pool, bottleneck, upsample, join the skip connection."""

import torch
from torch import nn


class DoubleConv(nn.Module):
    """Two 3x3 convolutions with normalisation and ReLU."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.first_norm = nn.BatchNorm2d(channels_out)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.second_norm = nn.BatchNorm2d(channels_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(x)))


class Model(nn.Module):
    """Per-pixel class probabilities."""

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        self.encode = DoubleConv(channels, width)
        self.pool = nn.MaxPool2d(2)
        self.bottleneck = DoubleConv(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.decode = DoubleConv(2 * width, width)
        self.classify = nn.Conv2d(width, classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        skip = self.encode(image)
        deep = self.bottleneck(self.pool(skip))
        joined = torch.cat([skip, self.up(deep)], dim=1)
        return torch.softmax(self.classify(self.decode(joined)), dim=1)


def get_init_inputs():
    return [3, 16, 4]


def get_inputs():
    return [torch.randn(4, 3, 64, 64)]
