"""The switches of torch for reduced precision, set as the contract says."""

import contextlib
from collections.abc import Generator
from typing import Protocol, cast

import torch


class _Switch(Protocol):
    """A part of torch's backends; the stubs say less of both."""

    allow_tf32: bool


def set_precision(matmul: str, conv: str) -> tuple[bool, bool]:
    """The flags that were set before TF32 was allowed where the contract allows it, and only there."""
    cuda = cast("_Switch", torch.backends.cuda.matmul)
    cudnn = cast("_Switch", torch.backends.cudnn)
    before = (bool(cuda.allow_tf32), bool(cudnn.allow_tf32))
    cuda.allow_tf32, cudnn.allow_tf32 = matmul != "fp32", conv != "fp32"
    return before


@contextlib.contextmanager
def precision(matmul: str, conv: str) -> Generator[None]:
    """Reduced precision allowed only where the contract allows it, for the length of the block."""
    old_matmul, old_conv = set_precision(matmul, conv)
    try:
        yield
    finally:
        set_precision("tf32" if old_matmul else "fp32", "tf32" if old_conv else "fp32")
