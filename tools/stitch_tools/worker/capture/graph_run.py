"""Runs a captured graph operation by operation with torch, and compares it with the forward that it is of."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from stitch_tools.worker.capture.graph_json import Json, UnsupportedGraphError
from stitch_tools.worker.trees import computable

_NAMES: dict[str, object] = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format))
}
_NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
# The same operations run on the same values: what is further off is no rounding.
_TOLERANCE = 1e-2


def run_graph(graph: Json, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor | None]:
    """User outputs of the graph; None where no node computes one.

    Args:
        graph: inputs, nodes and outputs as JSON.
        values: the graph's inputs by name.

    Raises:
        UnsupportedGraphError: an operation gives another shape or type than the graph says.
    """
    held: dict[tuple[str, int], torch.Tensor] = {(name, 0): value for name, value in values.items()}
    users = [row["value"] for row in graph["outputs"] if row["kind"] == "user"]
    last = {reference: place for place, node in enumerate(graph["nodes"]) for reference in _read_by(node)}
    wanted = {(value["ref"], value["index"]) for value in users if value is not None}
    for place, node in enumerate(graph["nodes"]):
        _, name, overload = node["op"].split(".", 2)
        operation = getattr(getattr(torch.ops.aten, name), overload)
        keywords = {key: _operand(value, held) for key, value in node["kwargs"].items()}
        result = operation(*(_operand(value, held) for value in node["args"]), **keywords)
        many = cast("Sequence[torch.Tensor]", result if isinstance(result, (tuple, list)) else [result])
        for index, (value, spec) in enumerate(zip(many, node["outputs"], strict=True)):
            if _form(value) != f"{spec['dtype']}{list(spec['shape'])}":
                raise UnsupportedGraphError(
                    f"{node['name']} gives {_form(value)}, and is said to give {spec}"
                )
            held[node["name"], index] = value
        for reference in _read_by(node):
            if last[reference] == place and reference not in wanted:
                held.pop(reference, None)
    return [held[value["ref"], value["index"]] if value is not None else None for value in users]


def difference(
    graph: Json, values: Mapping[str, torch.Tensor], forward: Callable[[], Sequence[torch.Tensor]]
) -> str:
    """In what the graph computes something else than `forward`; "" where it computes the same."""
    expected = forward()
    actual = run_graph(graph, values)
    if len(actual) != len(expected):
        return f"it has {len(actual)} outputs, the forward {len(expected)}"
    for place, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if ours is None:
            continue
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"output {place} is {_form(ours)}, the forward's {_form(theirs)}"
        if not _is_close(ours, theirs):
            return f"output {place} has other values than the forward's"
    return ""


def _is_close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    ours, theirs = computable(ours), computable(theirs)
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return torch.equal(ours, theirs)
    known = theirs[theirs.isfinite()].abs()
    size = float(known.double().square().mean().sqrt()) if known.numel() else 0.0
    return torch.allclose(ours, theirs, rtol=_TOLERANCE, atol=_TOLERANCE * size, equal_nan=True)


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _read_by(node: Json) -> set[tuple[str, int]]:
    def walk(value: object) -> set[tuple[str, int]]:
        if isinstance(value, dict):
            reference = cast("dict[str, Any]", value)
            return {(reference["ref"], reference["index"])}
        if isinstance(value, (list, tuple)):
            return set[tuple[str, int]]().union(*map(walk, cast("Sequence[object]", value)))
        return set()

    return walk([node["args"], list(node["kwargs"].values())])


def _operand(value: object, held: Mapping[tuple[str, int], torch.Tensor]) -> object:
    if isinstance(value, dict):
        reference = cast("dict[str, Any]", value)
        return held[reference["ref"], reference["index"]]
    if isinstance(value, (list, tuple)):
        return [_operand(item, held) for item in cast("Sequence[object]", value)]
    if isinstance(value, str):
        return _NAMES[value] if value in _NAMES else _NUMBERS.get(value, value)
    return value
