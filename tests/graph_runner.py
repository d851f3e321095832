"""Runs a captured graph operation by operation with torch: what a capture means, as a test oracle."""

import base64
from typing import Any

import torch

from stitch_tools.models.graph import Argument, Graph, ValueRef

_TORCH_NAMES: dict[str, Any] = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format))
}
_NUMBERS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


def run_graph(graph: Graph, module: torch.nn.Module, inputs: list[Any]) -> list[torch.Tensor | None]:
    """User outputs of `graph` with the weights of `module`; None where no node computes one."""
    state = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    values: dict[tuple[str, int], Any] = {}
    for row in graph.inputs:
        if row.kind == "constant":
            values[row.name, 0] = constant_of(row.data_base64 or "", row.spec.dtype, row.spec.shape)
        elif row.kind == "user":
            values[row.name, 0] = _leaf(inputs, row.target)
        else:
            values[row.name, 0] = state[row.target]
    with torch.no_grad():
        for node in graph.nodes:
            _, name, overload = node.op.split(".", 2)
            operation = getattr(getattr(torch.ops.aten, name), overload)
            args = [_operand(value, values) for value in node.args]
            result = operation(*args, **{k: _operand(v, values) for k, v in node.kwargs.items()})
            many = result if isinstance(result, (tuple, list)) else [result]
            for index, (value, spec) in enumerate(zip(many, node.outputs, strict=True)):
                assert tuple(value.shape) == spec.shape, (node.name, value.shape, spec.shape)
                assert str(value.dtype) == f"torch.{spec.dtype}", (node.name, value.dtype, spec.dtype)
                values[node.name, index] = value
    users = [row.value for row in graph.outputs if row.kind == "user"]
    return [values[value.ref, value.index] if value else None for value in users]


def constant_of(data: str, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor behind a lifted constant's base64 text."""
    raw = bytearray(base64.b64decode(data))
    kind = _TORCH_NAMES[f"torch.{dtype}"]
    flat = torch.frombuffer(raw, dtype=kind) if raw else torch.empty(0, dtype=kind)
    return flat.reshape(shape)


def _leaf(inputs: Any, path: str) -> Any:
    for part in path.split("."):
        inputs = inputs[part] if isinstance(inputs, dict) else inputs[int(part)]
    return inputs


def _operand(value: Argument, values: dict[tuple[str, int], Any]) -> Any:
    if isinstance(value, ValueRef):
        return values[value.ref, value.index]
    if isinstance(value, tuple):
        return [_operand(item, values) for item in value]
    if isinstance(value, str):
        if value in _TORCH_NAMES:
            return _TORCH_NAMES[value]
        return _NUMBERS.get(value, value)
    return value
