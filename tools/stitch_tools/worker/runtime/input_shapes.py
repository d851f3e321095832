"""What a call gives to a `ModelNew` that was made for inputs of one shape; anything else is refused.

Stands alone beside `native.py`: the stitcher copies both into the programs that it writes in Python.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import torch

from stitch_tools.worker.runtime.native import ProgramError

Wanted = tuple[str, tuple[int, ...], tuple[int, ...] | None]
"""Type (torch's name for it), sizes and strides of a tensor; None: dense, as others can be made."""


def take(
    args: Sequence[object],
    named: Mapping[str, object],
    tensors: Mapping[str, Wanted],
    constants: Mapping[str, tuple[str, str]] | None,
    device: str = "cpu",
) -> dict[str, torch.Tensor]:
    """The call's tensors by their dotted paths ("0", "1.hidden", "mask.0").

    Args:
        args: positional arguments.
        named: named arguments.
        tensors: what the program takes, by path.
        constants: kind and text of what is part of the program, by path; None where that is not known.
        device: type of the device on which all tensors lie.

    Raises:
        ProgramError: status `unsupported`; an argument is missing, unknown, or not what it was.
    """
    leaves = {**dict(_leaves(list(args), "")), **dict(_leaves(dict(named), ""))}
    for path in (*tensors, *(constants or ())):
        if path not in leaves:
            raise _refusal(f"input {path} is missing")
    result: dict[str, torch.Tensor] = {}
    for path, value in leaves.items():
        if path in tensors:
            result[path] = _checked(path, value, tensors[path], device)
        elif constants is not None and _words(value) != constants.get(path):
            made = " ".join(constants[path]) if path in constants else "none"
            raise _refusal(f"input {path}: made for {made}, given {' '.join(_words(value))}")
    return {path: result[path] for path in tensors}


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        items: Iterable[tuple[object, object]] = cast("dict[object, object]", value).items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(cast("Sequence[object]", value))
    else:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _checked(path: str, value: object, wanted: Wanted, device: str) -> torch.Tensor:
    dtype, shape, stride = wanted
    if not isinstance(value, torch.Tensor):
        raise _refusal(f"input {path} is no tensor")
    if value.device.type != device:
        made = "the CPU" if device == "cpu" else "a GPU"
        raise _refusal(f"input {path} is on {value.device}, made for {made}")
    if (_name(value.dtype), tuple(value.shape)) != (dtype, shape):
        raise _refusal(f"input {path}: made for {dtype}{list(shape)}, given {_described(value)}")
    if stride is not None and value.stride() != stride:
        raise _refusal(f"input {path}: made for strides {stride}, given {value.stride()}")
    return value


def _described(tensor: torch.Tensor) -> str:
    return f"{_name(tensor.dtype)}{list(tensor.shape)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _words(value: object) -> tuple[str, str]:
    """Kind and text of a constant, as the tree of a reference's inputs names them."""
    if isinstance(value, torch.Tensor):
        return "tensor", _described(value)
    if isinstance(value, torch.dtype):
        return "dtype", _name(value)
    if isinstance(value, (str, torch.device)):
        return type(value).__name__, str(value)
    return type(value).__name__, repr(value)


def _refusal(message: str) -> ProgramError:
    return ProgramError("unsupported", "inputs", message)
