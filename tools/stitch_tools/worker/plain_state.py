"""State in plain attributes of a module and its children: copied, compared and put back."""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

import torch

from stitch_tools.worker.trees import computable, fresh_copy, map_tensors, tensors_in

# Names that torch keeps on modules for itself; _flat_weights merely lists a recurrent module's parameters.
_TORCH_OWN = {
    *vars(torch.nn.Module()),
    "_flat_weights",
    "_flat_weight_refs",
    "_all_weights",
    "_backward_hooks",
}
# How deep objects in objects are compared.
_DEPTH = 6
Place = tuple[str, str]
"""Qualified name of a module, "" for the outermost, and an attribute's name."""


class PlainState:
    """The plain attributes of a module as they were when this was made."""

    def __init__(self, module: torch.nn.Module, only: Collection[str] | None = None) -> None:
        """Copy them; `only` names the qualified ones that are wanted."""
        self._parts = dict(module.named_modules())
        self._only = only
        parameters, buffers = module.parameters(), module.buffers()
        # What is registered with torch is no copy's: lists of layers and back references lead to it.
        self._kept = {id(value): value for value in (*self._parts.values(), *parameters, *buffers)}
        self._saved = self._copies(self._present())

    def restore(self, change: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        """Put copies back, their tensors replaced by `change`; what came since is removed."""
        for path, name in self._present().keys() - self._saved.keys():
            delattr(self._parts[path], name)
        for (path, name), value in self._copies(self._saved).items():
            vars(self._parts[path])[name] = map_tensors(value, change) if change is not None else value

    def changed(self) -> tuple[str, ...]:
        """Qualified names of the attributes that hold something else now, are new or gone."""
        present = self._present()
        places = sorted(present.keys() | self._saved.keys())
        return tuple(
            _qualified(place)
            for place in places
            if place not in present
            or place not in self._saved
            or not _same(self._saved[place], present[place], _DEPTH)
        )

    def _present(self) -> dict[Place, object]:
        return {
            (path, name): value
            for path, part in self._parts.items()
            for name, value in vars(part).items()
            if name not in _TORCH_OWN and (self._only is None or _qualified((path, name)) in self._only)
        }

    def _copies(self, values: Mapping[Place, object]) -> dict[Place, object]:
        # One memo for all: an object that several layers share stays one.
        memo: dict[int, object] = dict(self._kept)
        return {place: _copied(value, memo) for place, value in values.items()}


def _qualified(place: Place) -> str:
    path, name = place
    return f"{path}.{name}" if path else name


def _copied(value: object, memo: dict[int, object]) -> object:
    for tensor in tensors_in(value):
        if id(tensor) not in memo:
            memo[id(tensor)] = fresh_copy(tensor.detach())
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # foreign objects: what cannot be copied (a lock, a handle) stays what it is
        return value


def _same(old: object, new: object, depth: int) -> bool:
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return identical(old, new)
    if type(old) is not type(new):
        return False
    if isinstance(old, (bool, int, float, complex, str, bytes)):
        return old == new or repr(old) == repr(new)  # NaN is NaN
    if not depth or old is new:
        return True
    if isinstance(old, dict):
        left, right = cast("dict[object, object]", old), cast("dict[object, object]", new)
        return left.keys() == right.keys() and all(_same(left[key], right[key], depth - 1) for key in left)
    if isinstance(old, (list, tuple)):
        first, second = cast("Sequence[object]", old), cast("Sequence[object]", new)
        return len(first) == len(second) and all(
            _same(*pair, depth - 1) for pair in zip(first, second, strict=True)
        )
    return _same(vars(old), vars(new), depth - 1) if hasattr(old, "__dict__") else True


def identical(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether shape, type and values are equal, NaN to NaN. Where they lie is no matter."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    left, right = computable(left), computable(right.to(left.device))
    return torch.equal(left, right) or bool(
        torch.equal(torch.isnan(left), torch.isnan(right))
        and torch.equal(left.nan_to_num(), right.nan_to_num())
    )
