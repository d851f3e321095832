"""Batch norms that average over all calls (`momentum=None`), written so that a graph can hold them.

torch computes their factor, one over the count of calls, as a Python number out of a buffer: no graph has
such a number, since it depends on a value. Here it stays a tensor.
"""

import contextlib
import functools
from collections.abc import Generator
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]


@contextlib.contextmanager
def averages_as_tensors(module: nn.Module) -> Generator[None]:
    """Run the body with such norms computing the same by operations on tensors."""
    changed = [part for part in module.modules() if isinstance(part, _BatchNorm) and _averages(part)]
    for part in changed:
        cast("Any", part).forward = functools.partial(_forward, part)
    try:
        yield
    finally:
        for part in changed:
            del part.forward


def _averages(part: _BatchNorm) -> bool:
    own_forward = type(part).forward is _BatchNorm.forward and "forward" not in vars(part)
    return part.training and own_forward and part.momentum is None and part.num_batches_tracked is not None


def _forward(part: _BatchNorm, x: torch.Tensor) -> torch.Tensor:
    cast("Any", part)._check_input_dim(x)
    count = cast("torch.Tensor", part.num_batches_tracked)
    count.add_(1)
    mean, variance = part.running_mean, part.running_var
    if mean is not None and variance is not None:
        values = x.detach().to(mean.dtype)
        axes = [0, *range(2, x.dim())]
        share = 1.0 / count.to(mean.dtype)
        mean.add_((values.mean(axes) - mean) * share)
        variance.add_((values.var(axes, correction=1) - variance) * share)
    return batch_norm(x, None, None, part.weight, part.bias, True, 0.0, part.eps)
