"""Nested inputs and outputs as flat lists of named tensors, and back.

The structure is JSON: "leaf" (a tensor), ["tuple"|"list", ...], {"dict": {...}}, ["none"], ["scalar", kind]
(an output that is a Python number travels as a 0-d tensor), ["constant", kind, text] (a number, string, dtype
or device among the inputs, which stays what it is) and ["opaque", type] (an input that cannot travel).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from stitch_tools.protocol.memory import span_elements

# Far deeper than any model nests, and far from Python's own limit, which nobody could tell a user about.
_MAX_DEPTH = 64
_SCALAR_DTYPES = {"bool": torch.bool, "int": torch.int64, "float": torch.float64}


Structure = object
"""JSON as described above; whoever reads it narrows it."""
ValueT = TypeVar("ValueT")


class TreeError(Exception):
    """A value that no program can take or return: a sparse tensor, one without values, an unknown object."""


@dataclass(frozen=True)
class Flat:
    """Tensors in the order of the leaves, with dotted names, and the structure around them."""

    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]
    structure: Structure


def flatten_inputs(value: object) -> Flat:
    """The tensors among the inputs; everything else is kept in the structure as a constant.

    Raises:
        TreeError: one of them is not dense or holds no values, or they are nested too deeply.
    """
    return _flatten(value, inputs=True)


def flatten_outputs(value: object) -> Flat:
    """The outputs as tensors; a Python number becomes a 0-d tensor.

    Raises:
        TreeError: as in `flatten_inputs`, or an output is neither tensor, number, None nor a tuple, list or
            dict of these.
    """
    return _flatten(value, inputs=False)


def unflatten(structure: Structure, tensors: Sequence[torch.Tensor]) -> object:
    """The nested value again. Named tuples come back as tuples, subclasses of dict as dict.

    Raises:
        TreeError: the structure holds an object that cannot travel, or does not fit the tensors.
    """
    rest = iter(tensors)
    value = _build(structure, rest)
    if next(rest, None) is not None:
        raise TreeError("there are more tensors than the structure has leaves")
    return value


def call_with(function: Callable[..., ValueT], arguments: object) -> ValueT:
    """The function's result: named arguments from a dict, positional ones from anything else."""
    if isinstance(arguments, dict):
        return function(**cast("dict[str, object]", arguments))
    return function(*cast("Sequence[object]", arguments))


def _opened(structure: Structure) -> tuple[str, Iterable[tuple[object, Structure]]]:
    """The kind of a structure, and what lies in it by key or position."""
    if isinstance(structure, dict):
        return "dict", cast("dict[str, dict[str, Structure]]", structure)["dict"].items()
    kind, *items = ["leaf"] if structure == "leaf" else cast("list[Structure]", structure)
    return str(kind), enumerate(items)


def leaf_names(structure: Structure, path: str = "") -> tuple[str, ...]:
    """Dotted names of the tensors in a structure, in order."""
    kind, items = _opened(structure)
    if kind in ("leaf", "scalar"):
        return (path or "0",)
    if kind not in ("tuple", "list", "dict"):
        return ()
    return tuple(name for key, item in items for name in leaf_names(item, _join(path, key)))


def describe_structure(structure: Structure) -> str:
    """A structure for people: (tensor, {"n": int})."""
    kind, pairs = _opened(structure)
    items = list(pairs)
    if kind == "leaf":
        return "tensor"
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {describe_structure(item)}" for key, item in items) + "}"
    if kind in ("tuple", "list"):
        inner = ", ".join(describe_structure(item) for _, item in items)
        return f"[{inner}]" if kind == "list" else f"({inner},)" if len(items) == 1 else f"({inner})"
    return "None" if kind == "none" else str(items[0][1])


def _flatten(value: object, *, inputs: bool) -> Flat:
    result: list[tuple[str, torch.Tensor]] = []
    structure = _walk(value, "", result, inputs, _MAX_DEPTH)
    return Flat(tuple(name for name, _ in result), tuple(tensor for _, tensor in result), structure)


def _walk(
    value: object, path: str, result: list[tuple[str, torch.Tensor]], inputs: bool, depth: int
) -> Structure:
    if isinstance(value, torch.Tensor):
        _refuse_odd(value, path or "the value")
        result.append((path or "0", value))
        return "leaf"
    if not depth:
        raise TreeError(f"the value is nested more than {_MAX_DEPTH} deep, or contains itself")
    if isinstance(value, (tuple, list)):
        kind = "list" if isinstance(value, list) else "tuple"
        rows = enumerate(value)
        return [kind, *(_walk(item, _join(path, index), result, inputs, depth - 1) for index, item in rows)]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TreeError(f"{path or 'the value'} is a dict with keys that are not strings")
        items = value.items()
        return {
            "dict": {key: _walk(item, _join(path, key), result, inputs, depth - 1) for key, item in items}
        }
    if value is None:
        return ["none"]
    return _constant(value) if inputs else _scalar(value, path, result)


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


def _constant(value: object) -> list[str]:
    kind = type(value).__name__
    if isinstance(value, (bool, int, float, str)) and kind in ("bool", "int", "float", "str"):
        return ["constant", kind, str(value) if isinstance(value, str) else repr(value)]
    if isinstance(value, torch.dtype):
        return ["constant", "dtype", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["constant", "device", str(value)]
    return ["opaque", kind]


def _scalar(value: object, path: str, result: list[tuple[str, torch.Tensor]]) -> list[str]:
    kind = type(value).__name__
    if not isinstance(value, (bool, int, float)) or kind not in _SCALAR_DTYPES:
        raise TreeError(
            f"output {path or '0'} is of type {kind};"
            " only tensors, numbers and tuples, lists or dicts of them work"
        )
    if kind == "int" and not -(2**63) <= value < 2**63:
        raise TreeError(f"output {path or '0'} is an integer beyond 64 bits")
    result.append((path or "0", number_tensor(value)))
    return ["scalar", kind]


def number_tensor(value: bool | int | float) -> torch.Tensor:
    """A Python number as the 0-d tensor that it travels as."""
    return torch.tensor(value, dtype=_SCALAR_DTYPES[type(value).__name__])


def _build(structure: Structure, rest: Iterator[torch.Tensor]) -> object:
    kind, items = _opened(structure)
    if kind == "dict":
        return {key: _build(item, rest) for key, item in items}
    if kind in ("leaf", "scalar"):
        tensor = next(rest, None)
        if tensor is None:
            raise TreeError("there are fewer tensors than the structure has leaves")
        return tensor if kind == "leaf" else tensor.item()
    if kind == "none":
        return None
    if kind == "constant":
        return _parse_constant(*(str(item) for _, item in items))
    if kind == "opaque":
        ((_, name),) = items
        raise TreeError(f"an input of type {name} cannot be handed to another process")
    values = [_build(item, rest) for _, item in items]
    return values if kind == "list" else tuple(values)


def _parse_constant(kind: str, text: str) -> object:
    if kind == "bool":
        return text == "True"
    if kind == "dtype":
        return getattr(torch, text)
    if kind == "device":
        return torch.device(text)
    return {"int": int, "float": float, "str": str}[kind](text)


def fresh_copy(tensor: torch.Tensor, device: torch.device | str | None = None) -> torch.Tensor:
    """The same values in new memory with the same strides, overlapping and padded layouts included."""
    if tensor.numel() == 0:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device or tensor.device
        )
    raw = raw_values(tensor.detach())
    copied = raw.clone() if device is None else raw.to(device, copy=True)
    return copied.as_strided(tensor.shape, tensor.stride())


def raw_values(tensor: torch.Tensor) -> torch.Tensor:
    """What lies in memory between the tensor's first and last element, gaps included, in one dimension."""
    extent = span_elements(tensor.shape, tensor.stride())
    return tensor.as_strided((extent,), (1,), tensor.storage_offset())


def map_tensors(value: ValueT, change: Callable[[torch.Tensor], torch.Tensor]) -> ValueT:
    """The nested value with every tensor replaced; containers that torch does not know stay as they are."""
    return tree_map_only(torch.Tensor, change, value)


def tensors_in(value: object) -> list[torch.Tensor]:
    """The tensors of a nested value, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
