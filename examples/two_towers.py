"""Retrieval scorer: two towers, their similarity matrix, and the normalised query vectors."""

import torch
from torch import nn
from torch.nn import functional


def tower(features: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh())


class Model(nn.Module):
    """Takes queries and documents; returns (scores, best score per query, query vectors)."""

    def __init__(self, query_features: int, document_features: int, width: int) -> None:
        super().__init__()
        self.query = tower(query_features, width)
        self.document = tower(document_features, width)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(
        self, queries: torch.Tensor, documents: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q = functional.normalize(self.query(queries), dim=-1)
        d = functional.normalize(self.document(documents), dim=-1)
        scores = self.scale.exp() * (q @ d.t())
        return scores, scores.amax(dim=-1), q


def get_init_inputs():
    return [96, 160, 192]


def get_inputs():
    return [torch.randn(512, 96), torch.randn(1024, 160)]
