"""Where the values of a draw are made from those of another: large ones on their GPU."""

import contextlib
from collections.abc import Callable

import torch

# From this size on, values are made on the GPU where the draw lies: on the host one pass over a gigabyte
# takes a second, and a kind takes several.
_MADE_IN_PLACE_BYTES = 1 << 24


def at_hand(tensor: torch.Tensor, device: torch.device | str | None = None) -> torch.Tensor:
    """The tensor where others are made from it: a large one on its GPU (or `device`), else on the host."""
    if tensor.nbytes < _MADE_IN_PLACE_BYTES:
        return tensor.cpu()
    return tensor if device is None else tensor.to(device)


def where_there_is_room(tensor: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """What `make` makes of the tensor at hand, or on the host where its GPU has no room."""
    with contextlib.suppress(torch.OutOfMemoryError):
        return make(at_hand(tensor))
    return make(tensor.cpu())


def generator_beside(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """The generator, or one on the values' GPU that its next number seeds."""
    if device.type == "cpu":
        return generator
    return torch.Generator(device).manual_seed(number_below(2**62, generator))


def number_below(end: int, generator: torch.Generator) -> int:
    """The generator's next number from 0 to `end` - 1."""
    return int(torch.randint(end, (), generator=generator, device=generator.device))
