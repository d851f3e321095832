"""Runs a captured graph with torch: what a capture means, as a test oracle."""

import base64
from typing import Any

import torch

from stitch_tools.models.graph import Graph
from stitch_tools.worker.capture import graph_run
from stitch_tools.worker.trees import flatten_inputs


def run_graph(graph: Graph, module: torch.nn.Module, inputs: Any) -> list[torch.Tensor | None]:
    """User outputs of `graph` with the weights of `module`; None where no node computes one."""
    state = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    flat = flatten_inputs(inputs)
    users = dict(zip(flat.names, flat.tensors, strict=True))
    values: dict[str, torch.Tensor] = {}
    for row in graph.inputs:
        if row.kind == "constant":
            values[row.name] = constant_of(row.data_base64 or "", row.spec.dtype, row.spec.shape)
        else:
            values[row.name] = (users if row.kind == "user" else state)[row.target]
    with torch.no_grad():
        return graph_run.run_graph(graph.model_dump(mode="json"), values)


def constant_of(data: str, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor behind a lifted constant's base64 text."""
    raw, kind = bytearray(base64.b64decode(data)), getattr(torch, dtype)
    flat = torch.frombuffer(raw, dtype=kind) if raw else torch.empty(0, dtype=kind)
    return flat.reshape(shape)
