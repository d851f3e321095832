"""KernelBench's own rule: torch.allclose with the reference's output, at a tolerance by type."""

import math
from collections.abc import Sequence

import torch

from stitch_tools.protocol.messages_reference import Agreement
from stitch_tools.worker.trees import computable

_FP32_TOLERANCE, _HALF_TOLERANCE, _HALF_BYTES = 1e-4, 1e-2, 2


def agreement(actual: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> Agreement:
    """The rule over all outputs, which have the reference's shapes and types."""
    ok, tolerance, largest = True, _FP32_TOLERANCE, 0.0
    for own, expected in zip(actual, reference, strict=True):
        if own.shape != expected.shape or own.dtype != expected.dtype:
            return Agreement(ok=False, tolerance=tolerance, largest_difference=None)
        limit = _HALF_TOLERANCE if own.dtype.itemsize <= _HALF_BYTES else _FP32_TOLERANCE
        own, expected = computable(own.to(expected.device)), computable(expected)
        if not (own.is_floating_point() or own.is_complex()):
            ok = ok and torch.equal(own, expected)
            continue
        tolerance = max(tolerance, limit)
        ok = ok and torch.allclose(expected, own, atol=limit, rtol=limit)
        if own.numel():
            wide = torch.complex128 if own.is_complex() else torch.float64
            gap = (own.to(wide) - expected.to(wide)).abs()
            largest = max(largest, float(gap.nan_to_num(nan=float("inf")).max()))
    return Agreement(ok, tolerance, largest if math.isfinite(largest) else None)
