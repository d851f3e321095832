"""Inputs that lie in each other's memory: the same tensor twice, a view beside its base. Copies keep that."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from stitch_tools.protocol.memory import span_elements
from stitch_tools.worker.trees import ValueT, map_tensors


@dataclass(frozen=True)
class SharedPlace:
    """Where a tensor lies: `offset` elements into the memory of tensor `root`, which may be itself."""

    root: int
    offset: int = 0


def places_of(tensors: Sequence[torch.Tensor]) -> list[SharedPlace]:
    """The place of each tensor. Partial overlaps, where neither holds the other, are not followed."""
    spans = [_span(tensor) for tensor in tensors]
    places = [SharedPlace(index) for index in range(len(tensors))]
    roots: list[int] = []
    for index in sorted(range(len(tensors)), key=lambda index: spans[index].start - spans[index].stop):
        span, tensor = spans[index], tensors[index]
        for root in roots:
            inside = spans[root].start <= span.start < span.stop <= spans[root].stop
            if inside and tensor.dtype == tensors[root].dtype:
                places[index] = SharedPlace(root, (span.start - spans[root].start) // tensor.element_size())
                break
        else:
            roots.append(index)
    return places


def reunite(tensors: list[torch.Tensor], places: Sequence[SharedPlace]) -> list[torch.Tensor]:
    """The tensors of separate copies, each put back to its place in the copy that holds it."""
    joined = list(tensors)
    for index, place in enumerate(places):
        if place.root != index:
            root, own = tensors[place.root], tensors[index]
            joined[index] = root.as_strided(own.shape, own.stride(), root.storage_offset() + place.offset)
    return joined


def map_shared(value: ValueT, change: Callable[[torch.Tensor], torch.Tensor]) -> ValueT:
    """As `map_tensors`; what lies in another tensor's memory lies in the changed one's, and is not changed.

    Where `change` does not keep strides, views of a tensor are changed on their own.
    """
    tensors: list[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(value, collect)
    places = places_of(tensors)
    changed = {index: change(tensors[index]) for index, place in enumerate(places) if place.root == index}
    results: list[torch.Tensor] = []
    for index, place in enumerate(places):
        root, original, own = changed[place.root], tensors[place.root], tensors[index]
        if (own.shape, own.stride(), place.offset) == (original.shape, original.stride(), 0):
            results.append(root)
        elif root.stride() == original.stride() and root.shape == original.shape:
            results.append(root.as_strided(own.shape, own.stride(), root.storage_offset() + place.offset))
        else:
            results.append(change(own))
    rest = iter(results)
    return map_tensors(value, lambda _: next(rest))


def _span(tensor: torch.Tensor) -> range:
    """Addresses of the tensor's bytes, gaps included."""
    start = tensor.data_ptr()
    return range(start, start + span_elements(tensor.shape, tensor.stride()) * tensor.element_size())
