"""Nested inputs and outputs as flat lists of named tensors, and back.

The structure is JSON: "leaf" (a tensor), ["tuple"|"list", ...], {"dict": {...}}, {"named": {...}} (a named
tuple among the inputs), ["none"], ["scalar", kind] (an output that is a Python number travels as a 0-d
tensor), ["constant", kind, text] (a number, string, dtype or device among the inputs, which stays what it is)
and ["opaque", type] (an input that cannot travel). Other mappings, and dataclasses, among outputs are dicts.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TypeVar, cast

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from stitch_tools.protocol.memory import span_elements

# Far deeper than any model nests, and far from Python's own limit, which nobody could tell a user about.
_MAX_DEPTH = 64
_SCALAR_DTYPES = {"bool": torch.bool, "int": torch.int64, "float": torch.float64}


_NAMED_TUPLE = cast("Callable[..., Callable[..., object]]", namedtuple)
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
    """The nested value again: named tuples of a class of ours, subclasses of dict as dict.

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
        ((kind, named),) = cast("dict[str, dict[str, Structure]]", structure).items()
        return kind, named.items()
    kind, *items = ["leaf"] if structure == "leaf" else cast("list[Structure]", structure)
    return str(kind), enumerate(items)


def leaf_names(structure: Structure, path: str = "") -> tuple[str, ...]:
    """Dotted names of the tensors in a structure, in order."""
    kind, items = _opened(structure)
    if kind in ("leaf", "scalar"):
        return (path or "0",)
    if kind not in ("tuple", "list", "dict", "named"):
        return ()
    if kind == "named":
        items = enumerate(item for _, item in items)
    return tuple(name for key, item in items for name in leaf_names(item, _join(path, key)))


def arranged(flat: Flat, wanted: Structure) -> Flat:
    """Outputs in the order and under the names of the reference's tree.

    A list may stand for a tuple, a container of one value for that value, and a dict's keys in any order.

    Raises:
        TreeError: the trees are not alike.
    """
    own, plain = _plain(flat.structure), _plain(wanted)
    if own != plain:  # dicts compare without their order
        raise TreeError(
            f"returns {describe_structure(flat.structure)}, expected {describe_structure(wanted)}"
        )
    by_name = dict(zip(leaf_names(own), flat.tensors, strict=True))
    return Flat(leaf_names(wanted), tuple(by_name[name] for name in leaf_names(plain)), wanted)


def other_container(flat: Flat, wanted: Structure) -> str:
    """What holds the outputs in place of the reference's containers; "" where these are the same."""
    own, expected = describe_structure(flat.structure), describe_structure(wanted)
    return "" if own == expected else f"returns {own}, the reference {expected}"


def _plain(structure: Structure) -> Structure:
    """The structure with tuples for lists, and without containers that hold one value."""
    kind, items = _opened(structure)
    if kind == "dict":
        return {"dict": {key: _plain(item) for key, item in items}}
    if kind not in ("tuple", "list"):
        return structure
    parts = [_plain(item) for _, item in items]
    return parts[0] if len(parts) == 1 else ["tuple", *parts]


def describe_structure(structure: Structure) -> str:
    """A structure for people: (tensor, {"n": int})."""
    kind, pairs = _opened(structure)
    items = list(pairs)
    if kind == "leaf":
        return "tensor"
    if kind in ("dict", "named"):
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
    named: tuple[str, ...] | None = getattr(value, "_fields", None) if isinstance(value, tuple) else None
    if inputs and named is not None:
        rows = enumerate(cast("Sequence[object]", value))
        items = [_walk(item, _join(path, index), result, inputs, depth - 1) for index, item in rows]
        return {"named": dict(zip(named, items, strict=True))}
    value = value if inputs else opened(value)
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


def opened(value: object) -> object:
    """A mapping that is no dict, or a dataclass, as the dict of what it holds; anything else as it is."""
    if isinstance(value, Mapping) and not isinstance(value, dict):
        return dict(cast("Mapping[object, object]", value))
    if is_dataclass(value) and not isinstance(value, (dict, type)):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value


def plain(value: object) -> object:
    """The nested value in tuples, lists and dicts of Python's own, which torch knows how to open."""
    value = opened(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in cast("dict[object, object]", value).items()}
    if isinstance(value, (list, tuple)):
        items = [plain(item) for item in cast("Sequence[object]", value)]
        return items if isinstance(value, list) else tuple(items)
    return value


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
    if kind in ("dict", "named"):
        named = {str(key): _build(item, rest) for key, item in items}
        return named if kind == "dict" else _NAMED_TUPLE("Inputs", named)(**named)
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


def computable(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in a type that torch computes in: of 8-bit floats it knows little but copies."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def map_tensors(value: ValueT, change: Callable[[torch.Tensor], torch.Tensor]) -> ValueT:
    """The nested value with every tensor replaced; containers that torch does not know stay as they are."""
    return tree_map_only(torch.Tensor, change, value)


def tensors_in(value: object) -> list[torch.Tensor]:
    """The tensors of a nested value, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
