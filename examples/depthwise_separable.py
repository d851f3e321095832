"""Mobile-style image encoder: depthwise and pointwise convolutions, for inference."""

import torch
from torch import nn


class Separable(nn.Module):
    """Depthwise 3x3, then pointwise 1x1, each with folded-in statistics and a clipped ReLU."""

    def __init__(self, channels_in: int, channels_out: int, stride: int = 1) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(
            channels_in, channels_in, 3, stride=stride, padding=1, groups=channels_in, bias=False
        )
        self.depthwise_norm = nn.BatchNorm2d(channels_in)
        self.pointwise = nn.Conv2d(channels_in, channels_out, 1, bias=False)
        self.pointwise_norm = nn.BatchNorm2d(channels_out)
        self.act = nn.ReLU6()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.depthwise_norm(self.depthwise(x)))
        return self.act(self.pointwise_norm(self.pointwise(x)))


class Model(nn.Module):
    """Four separable layers with one residual, global pooling, logits."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = Separable(width, 2 * width)
        self.down = Separable(2 * width, 4 * width, stride=2)
        self.same = Separable(4 * width, 4 * width)
        self.last = Separable(4 * width, 8 * width, stride=2)
        self.logits = nn.Linear(8 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(self.first(x))
        x = x + self.same(x)
        return self.logits(self.last(x).mean(dim=(2, 3)))


def get_init_inputs():
    return [32, 100]


def get_inputs():
    return [torch.randn(4, 32, 56, 56)]
