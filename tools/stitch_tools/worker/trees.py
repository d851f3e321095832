"""Nested inputs and outputs as flat lists of named tensors, and back.

The structure is JSON: "leaf" (a tensor), ["tuple"|"list", ...], {"dict": {...}}, ["none"], ["scalar", kind]
(an output that is a Python number travels as a 0-d tensor), ["constant", kind, text] (a number, string, dtype
or device among the inputs, which stays what it is) and ["opaque", type] (an input that cannot travel).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from stitch_tools.protocol.memory import span_elements

_MAX_DEPTH = 64
"""Far deeper than any model nests, and far from Python's own limit, which nobody could tell a user about."""
_SCALAR_DTYPES = {"bool": torch.bool, "int": torch.int64, "float": torch.float64}
_TORCH_CONSTANTS = {
    name: getattr(torch, name) for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)
}


class TreeError(Exception):
    """A value that no program can take or return: a sparse tensor, one without values, an unknown object."""


@dataclass(frozen=True)
class Flat:
    """Tensors in the order of the leaves, with dotted names, and the structure around them."""

    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]
    structure: Any


def flatten_inputs(value: Any) -> Flat:
    """The tensors among the inputs; everything else is kept in the structure as a constant.

    Raises:
        TreeError: one of them is not dense or holds no values, or they are nested too deeply.
    """
    return _flatten(value, inputs=True)


def flatten_outputs(value: Any) -> Flat:
    """The outputs as tensors; a Python number becomes a 0-d tensor.

    Raises:
        TreeError: as in `flatten_inputs`, or an output is neither tensor, number, None nor a tuple, list or
            dict of these.
    """
    return _flatten(value, inputs=False)


def unflatten(structure: Any, tensors: list[torch.Tensor]) -> Any:
    """The nested value again. Named tuples come back as tuples, subclasses of dict as dict.

    Raises:
        TreeError: the structure holds an object that cannot travel, or does not fit the tensors.
    """
    rest = iter(tensors)
    value = _build(structure, rest)
    if next(rest, None) is not None:
        raise TreeError("there are more tensors than the structure has leaves")
    return value


def leaf_names(structure: Any, path: str = "") -> tuple[str, ...]:
    """Dotted names of the tensors in a structure, in order."""
    if isinstance(structure, dict):
        items = list(structure["dict"].items())
    elif structure == "leaf" or structure[0] == "scalar":
        return (path or "0",)
    elif structure[0] in ("tuple", "list"):
        items = list(enumerate(structure[1:]))
    else:
        return ()
    return tuple(name for key, item in items for name in leaf_names(item, _join(path, key)))


def describe_structure(structure: Any) -> str:
    """A structure for people: (tensor, {"n": int})."""
    if structure == "leaf":
        return "tensor"
    if isinstance(structure, dict):
        return (
            "{"
            + ", ".join(f"{key!r}: {describe_structure(item)}" for key, item in structure["dict"].items())
            + "}"
        )
    kind, *items = structure
    if kind in ("tuple", "list"):
        inner = ", ".join(map(describe_structure, items))
        return f"[{inner}]" if kind == "list" else f"({inner},)" if len(items) == 1 else f"({inner})"
    return "None" if kind == "none" else str(items[0])


def _flatten(value: Any, *, inputs: bool) -> Flat:
    found: list[tuple[str, torch.Tensor]] = []
    structure = _walk(value, "", found, inputs, _MAX_DEPTH)
    return Flat(tuple(name for name, _ in found), tuple(tensor for _, tensor in found), structure)


def _walk(value: Any, path: str, found: list[tuple[str, torch.Tensor]], inputs: bool, depth: int) -> Any:
    if isinstance(value, torch.Tensor):
        _refuse_odd(value, path or "the value")
        found.append((path or "0", value))
        return "leaf"
    if not depth:
        raise TreeError(f"the value is nested more than {_MAX_DEPTH} deep, or contains itself")
    if isinstance(value, (tuple, list)):
        kind = "list" if isinstance(value, list) else "tuple"
        rows = enumerate(value)
        return [kind, *(_walk(item, _join(path, index), found, inputs, depth - 1) for index, item in rows)]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TreeError(f"{path or 'the value'} is a dict with keys that are not strings")
        items = value.items()
        return {"dict": {key: _walk(item, _join(path, key), found, inputs, depth - 1) for key, item in items}}
    if value is None:
        return ["none"]
    return _constant(value) if inputs else _scalar(value, path, found)


def _refuse_odd(tensor: torch.Tensor, name: str) -> None:
    """Raise a TreeError where no program could read the tensor's memory."""
    if tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else "quantized"
        raise TreeError(f"{name} is a {kind} tensor; only dense tensors are supported")
    if tensor.layout != torch.strided:
        raise TreeError(f"{name} is a {tensor.layout} tensor; only dense tensors are supported")
    if tensor.is_meta:
        raise TreeError(f"{name} is on the device `meta`, where tensors hold no values")


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _constant(value: Any) -> list[str]:
    kind = type(value).__name__
    if isinstance(value, (bool, int, float, str)) and kind in ("bool", "int", "float", "str"):
        return ["constant", kind, str(value) if isinstance(value, str) else repr(value)]
    if isinstance(value, torch.dtype):
        return ["constant", "dtype", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["constant", "device", str(value)]
    return ["opaque", kind]


def _scalar(value: Any, path: str, found: list[tuple[str, torch.Tensor]]) -> list[str]:
    kind = type(value).__name__
    if kind not in _SCALAR_DTYPES:
        raise TreeError(
            f"output {path or '0'} is of type {kind};"
            " only tensors, numbers and tuples, lists or dicts of them work"
        )
    if kind == "int" and not -(2**63) <= value < 2**63:
        raise TreeError(f"output {path or '0'} is an integer beyond 64 bits")
    found.append((path or "0", number_tensor(value)))
    return ["scalar", kind]


def number_tensor(value: bool | int | float) -> torch.Tensor:
    """A Python number as the 0-d tensor that it travels as."""
    return torch.tensor(value, dtype=_SCALAR_DTYPES[type(value).__name__])


def _build(structure: Any, rest: Iterator[torch.Tensor]) -> Any:
    if isinstance(structure, dict):
        return {key: _build(item, rest) for key, item in structure["dict"].items()}
    kind, *items = ["leaf"] if structure == "leaf" else structure
    if kind in ("leaf", "scalar"):
        tensor = next(rest, None)
        if tensor is None:
            raise TreeError("there are fewer tensors than the structure has leaves")
        return tensor if kind == "leaf" else tensor.item()
    if kind == "none":
        return None
    if kind == "constant":
        return _parse_constant(*items)
    if kind == "opaque":
        raise TreeError(f"an input of type {items[0]} cannot be handed to another process")
    values = [_build(item, rest) for item in items]
    return values if kind == "list" else tuple(values)


def _parse_constant(kind: str, text: str) -> Any:
    if kind == "bool":
        return text == "True"
    if kind == "dtype":
        return _TORCH_CONSTANTS[text]
    if kind == "device":
        return torch.device(text)
    return {"int": int, "float": float, "str": str}[kind](text)


def fresh_copy(tensor: torch.Tensor, device: torch.device | str | None = None) -> torch.Tensor:
    """The same values in new memory with the same strides, overlapping and padded layouts included."""
    if tensor.numel() == 0:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device or tensor.device
        )
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    raw = tensor.detach().as_strided((extent,), (1,), tensor.storage_offset())
    copied = raw.clone() if device is None else raw.to(device, copy=True)
    return copied.as_strided(tensor.shape, tensor.stride())


def raw_values(tensor: torch.Tensor) -> torch.Tensor:
    """What lies in memory between the tensor's first and last element, gaps included, in one dimension."""
    extent = span_elements(tensor.shape, tensor.stride())
    return tensor.as_strided((extent,), (1,), tensor.storage_offset())


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The nested value with every tensor replaced; containers of the user's own classes stay as they are."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(map_tensors(item, change) for item in value)
    if type(value) is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value
