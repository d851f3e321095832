"""Modules whose forward is a function, and their captured graphs."""

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from stitch_tools.graph import build_graph
from stitch_tools.models.graph import Graph
from stitch_tools.models.task import Contract
from stitch_tools.worker.capture.graph_capture import capture
from tests.graph_runner import run_graph

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Body(nn.Module):
    """A module whose forward is a function of the module and its inputs."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body
        self.lin = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.count = 0
        self.total: torch.Tensor
        self.register_buffer("total", torch.zeros(4))

    def forward(self, *inputs: Any) -> Any:
        return self.body(self, *inputs)


def captured(module: nn.Module, inputs: Any) -> Graph:
    """The graph as it arrives: its data goes through JSON."""
    data = capture(module, inputs)
    return build_graph(json.loads(json.dumps(data, allow_nan=False)), Contract(), None)


def ops(graph: Graph) -> list[str]:
    """The operations' names, in order."""
    return [node.op.removeprefix("aten.") for node in graph.nodes]


def assert_computes_the_same(graph: Graph, module: nn.Module, inputs: list[Any]) -> None:
    """Run graph and module from the same generator state."""
    torch.manual_seed(3)
    actual = run_graph(graph, module, inputs)
    torch.manual_seed(3)
    with torch.no_grad():
        expected = pytree.tree_leaves(module(*inputs))
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)
