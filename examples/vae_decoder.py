"""Decoder of a variational autoencoder: latent vector to image."""

import torch
from torch import nn


class Upsample(nn.Module):
    """Nearest-neighbour upsampling, convolution, GroupNorm and SiLU."""

    def __init__(self, channels_in: int, channels_out: int, groups: int) -> None:
        super().__init__()
        self.grow = nn.Upsample(scale_factor=2.0, mode="nearest")
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.norm = nn.GroupNorm(groups, channels_out)
        self.act = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.conv(self.grow(x))))


class Model(nn.Module):
    """Linear projection to an 8x8 map, two upsampling stages, pixels in (0, 1)."""

    def __init__(self, latent: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.project = nn.Linear(latent, 4 * width * 8 * 8)
        self.stages = nn.Sequential(Upsample(4 * width, 2 * width, 8), Upsample(2 * width, width, 8))
        self.pixels = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        x = self.project(z).view(-1, 4 * self.width, 8, 8)
        return torch.sigmoid(self.pixels(self.stages(x)))


def get_init_inputs():
    return [64, 24]


def get_inputs():
    return [torch.randn(8, 64)]
