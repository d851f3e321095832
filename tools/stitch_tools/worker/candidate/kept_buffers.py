"""Whether a program left alone the buffers that its contract keeps: hashed before and after calls."""

import hashlib
from collections.abc import Iterable

import torch


def digests(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """The hash of each tensor's bytes, with its type and shape, by name."""
    return {name: _digest(tensor) for name, tensor in tensors}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Names whose bytes are others now, or that are gone."""
    return [name for name, digest in before.items() if after.get(name) != digest]


def _digest(tensor: torch.Tensor) -> str:
    # A dense copy on the host: a view's own strides do not matter, a NaN's bits do.
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    found = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    found.update(raw.numpy().data)
    return found.hexdigest()
