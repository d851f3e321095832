"""Attention in which each token sees the last 64 tokens, written as full attention with a mask."""

import math

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        place = torch.arange(tokens, device=x.device)
        distance = place[:, None] - place[None, :]
        scores = scores.masked_fill((distance < 0) | (distance >= self.window), float("-inf"))
        mixed = scores.softmax(dim=-1) @ v
        return x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(2, 1024, 256)]


def get_init_inputs() -> list[int]:
    return [256, 4, 64]
