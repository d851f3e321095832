"""Arguments of a call brought into the form in which the reference was watched.

A native program takes the tensors alone, in one order; what else the reference was called with is part of the
program. Another order is put right here, and other values are refused.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch

from stitch_tools.worker.trees import Structure, flatten_inputs


def parameter_names(function: Callable[..., object]) -> tuple[str, ...]:
    """Names of the arguments that may be given by position, in order; empty where they are not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)


def bind_inputs(
    structure: Structure, names: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object]
) -> list[object] | dict[str, object]:
    """The call's arguments as the reference got them: a list by position, or a dict by name.

    Args:
        structure: tree of the reference's inputs, from ReferenceFacts.input_structure; None is not known.
        names: parameter_names of the reference's forward.
        args: positional arguments.
        kwargs: named arguments.

    Raises:
        TypeError: an argument is missing, unknown, given twice, or of another kind.
        ValueError: an argument that is no tensor has another value than the reference was called with.
    """
    if structure is None:
        if args and kwargs:
            raise TypeError(
                "this certificate does not say how named arguments follow positional ones: "
                "give all by position, or all by name"
            )
        return dict(kwargs) if kwargs else list(args)
    if isinstance(structure, dict):
        given = _by_name(names, args, kwargs)
        return _fit_dict(cast("dict[str, dict[str, Structure]]", structure)["dict"], given, "")
    wanted = cast("list[Structure]", structure)[1:]
    labels = [names[place] if place < len(names) else str(place) for place in range(len(wanted))]
    given = _by_name([*labels, *names[len(wanted) :]], args, kwargs)
    fields = dict(zip(labels, wanted, strict=True))
    return list(_fit_dict(fields, given, "").values())


def _by_name(names: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    if len(args) > len(names):
        raise TypeError(f"{len(args)} positional arguments were given, the program takes {len(names)}")
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            raise TypeError(f"argument {name} was given twice")
        given[name] = value
    return given


def _fit(wanted: Structure, value: object, path: str) -> object:
    """`value` with the keys of dicts in the order of `wanted`, all else compared."""
    if isinstance(wanted, dict) and "named" in wanted:
        fields = cast("dict[str, dict[str, Structure]]", wanted)["named"]
        if not all(hasattr(value, name) for name in fields):
            raise TypeError(f"argument {path} had the fields {', '.join(fields)} when the program was made")
        _fit_dict(fields, {name: getattr(value, name) for name in fields}, path)
        return value
    if isinstance(wanted, dict):
        return _fit_dict(cast("dict[str, dict[str, Structure]]", wanted)["dict"], value, path)
    if wanted == "leaf":
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"argument {path} was a tensor when the program was made, now it is {value!r}")
        return value
    kind, *inside = cast("list[Structure]", wanted)
    if kind in ("tuple", "list"):
        if not isinstance(value, (tuple, list)) or len(cast("Sequence[object]", value)) != len(inside):
            raise TypeError(f"argument {path} was a {kind} of {len(inside)} when the program was made")
        items = zip(inside, cast("Sequence[object]", value), strict=True)
        return [_fit(item, inner, f"{path}.{place}") for place, (item, inner) in enumerate(items)]
    if isinstance(value, torch.Tensor):
        raise TypeError(f"argument {path} was {_words(wanted)} when the program was made, now it is a tensor")
    if flatten_inputs(value).structure != wanted:
        raise ValueError(
            f"argument {path} was {_words(wanted)} when the program was made, now it is {value!r}: "
            "its value is part of the program, so solve again with the other one"
        )
    return value


def _fit_dict(wanted: Mapping[str, object], value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"argument {path} was a dict when the program was made")
    given = cast("dict[str, object]", value)
    for name in given:
        if name not in wanted:
            raise TypeError(f"argument {_join(path, name)} was not given when the program was made")
    for name in wanted:
        if name not in given:
            raise TypeError(
                f"argument {_join(path, name)} is missing: it was given when the program was made"
            )
    return {name: _fit(item, given[name], _join(path, name)) for name, item in wanted.items()}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _words(structure: Structure) -> str:
    """A constant of the structure as text."""
    wanted = cast("Sequence[str]", structure)
    if wanted[0] == "none":
        return "None"
    if wanted[0] == "opaque":
        return f"an object of type {wanted[1]}"
    return repr(wanted[2]) if wanted[1] == "str" else wanted[2]
