"""y = tanh(x x / 16), replayed."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.graphs = {}

    def capture(self, x):
        held = x.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.tanh(torch.mm(held, held) / 16)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.tanh(torch.mm(held, held) / 16)
        return held, graph, y

    def forward(self, x):
        if x.shape not in self.graphs:
            self.graphs[x.shape] = self.capture(x)
        held, graph, y = self.graphs[x.shape]
        held.copy_(x)
        graph.replay()
        return y.clone()
