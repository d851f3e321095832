"""How many representable numbers lie between a value and the oracle rounded to the value's own type."""

import torch

ULP_LIMITS = (0, 1, 2, 4, 16, 256)
"""Largest distance of each bin; beyond the last comes `more`, then `non-finite`."""

_FAR = 1 << 20
# Elements at a time: several temporary tensors of this size fit into a cache.
_PART = 1 << 18

_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def ulp_histogram(actual: torch.Tensor, oracle: torch.Tensor) -> tuple[int, ...] | None:
    """Elements per distance 0, 1, 2, 3-4, 5-16, 17-256, more, non-finite; None for types without ULPs."""
    if actual.is_complex():
        actual, oracle = torch.view_as_real(actual), torch.view_as_real(oracle)
    if actual.dtype not in _BITS:
        return None
    counts = torch.zeros(len(ULP_LIMITS) + 2, dtype=torch.int64, device=actual.device)
    left, right = actual.reshape(-1), oracle.to(actual.device).reshape(-1)
    for part, wanted in zip(left.split(_PART), right.split(_PART), strict=True):
        counts += _histogram(part, wanted.to(actual.dtype))
    return tuple(counts.tolist())


def _histogram(actual: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    finite = actual.isfinite() & rounded.isfinite()
    other = (actual != rounded) & finite  # mostly few: the rest need not be measured
    left, right = _ordered(actual[other]), _ordered(rounded[other])
    # Numbers of opposite signs may be further apart than int64 can tell: that is in the last bin anyhow.
    apart = (left < 0) != (right < 0)
    distance = torch.where(
        apart, left.abs().clamp_max(_FAR) + right.abs().clamp_max(_FAR), (left - right).abs()
    )
    edges = torch.tensor(ULP_LIMITS, dtype=torch.int64, device=actual.device)
    counts = torch.bincount(torch.bucketize(distance, edges), minlength=len(ULP_LIMITS) + 1)
    strange = (~finite).sum()
    counts[0] += len(actual) - len(distance) - strange
    return torch.cat([counts, strange.reshape(1)])


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the numbers, neighbors one apart, both zeros at 0."""
    bits = values.contiguous().view(_BITS[values.dtype]).to(torch.int64)
    lowest = torch.iinfo(_BITS[values.dtype]).min
    return torch.where(bits < 0, lowest - bits, bits)
