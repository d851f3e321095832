"""Feed-forward part of a recent language model: RMSNorm, SwiGLU, residual."""

import torch
from torch import nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """Scales each vector to unit mean square, written out as most model files do."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.eps) * self.weight


class Model(nn.Module):
    """Two normalised SwiGLU blocks."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.final_norm = RMSNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return self.final_norm(x)


def get_init_inputs():
    return [256, 704]


def get_inputs():
    return [torch.randn(2, 256, 256)]
