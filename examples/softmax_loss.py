"""Language-model head: logits with a temperature, mean cross entropy against the targets."""

import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    """Returns the scalar loss of (tokens, width) hidden states."""

    def __init__(self, width: int, vocabulary: int, temperature: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocabulary, bias=False)
        self.temperature = temperature

    def forward(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.logits(self.norm(hidden)) / self.temperature
        return functional.cross_entropy(logits, targets)


def get_init_inputs():
    return [128, 4000, 0.7]


def get_inputs():
    return [torch.randn(512, 128), torch.randint(0, 4000, (512,))]
