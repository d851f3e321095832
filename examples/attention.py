"""Causal self-attention written out by hand: scores, mask, softmax, weighted sum."""

import math

import torch
from torch import nn


class Model(nn.Module):
    """Multi-head attention with one joint projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        head_width = width // self.heads
        q, k, v = self.qkv(x).split(width, dim=-1)
        q = q.view(batch, length, self.heads, head_width).transpose(1, 2)
        k = k.view(batch, length, self.heads, head_width).transpose(1, 2)
        v = v.view(batch, length, self.heads, head_width).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(head_width)
        scores = scores.masked_fill(self.future[:length, :length], float("-inf"))
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def get_init_inputs():
    return [256, 8, 256]


def get_inputs():
    return [torch.randn(4, 256, 256)]
