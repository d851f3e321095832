"""How far values are from the oracle, and what such distances are measured by."""

from dataclasses import dataclass

import torch

# Shorter slices have no rms worth the name.
_SLICE_LENGTH = 16
# A slice is not scaled by less than this share of the whole output's rms: what cancels is not precise.
_SLICE_SCALE = 2.0**-7


@dataclass(frozen=True)
class OwnError:
    """How far evaluations of one output are from the oracle, in the figures that judge a program."""

    largest: float = 0.0
    """Of the distances over their scale."""
    rms: float = 0.0
    """Of the distances over the output's rms."""
    sliced: float = 0.0
    """As `largest`, with the rms of the element's last-axis slice."""

    def or_worse(self, other: "OwnError") -> "OwnError":
        """The larger of each figure."""
        return OwnError(*map(max, vars(self).values(), vars(other).values()))


def distance_of(value: torch.Tensor, oracle: torch.Tensor, usable: torch.Tensor) -> torch.Tensor:
    """Distance of each element, 0 where it is not `usable`; in memory of its own."""
    # In place where a tensor is our own: most of the time goes to memory that is touched the first time.
    distance = (value.double() - oracle.double()).abs_()
    return distance if bool(usable.all()) else distance.masked_fill_(~usable, 0.0)


def size_of(oracle: torch.Tensor, usable: torch.Tensor) -> torch.Tensor:
    """Magnitude of each element, 0 where it is not `usable`."""
    size = oracle.double().abs()
    return size if bool(usable.all()) else size.masked_fill_(~usable, 0.0)


def figures_of(distance: torch.Tensor, size: torch.Tensor, rms: float) -> OwnError:
    """The figures of these distances from elements of this size."""
    unit = rms or 1.0
    sliced = 0.0
    if size.dim() >= 2 and size.shape[-1] >= _SLICE_LENGTH and size.numel() > size.shape[-1]:
        slice_rms = size.square().mean(-1, keepdim=True).sqrt_().clamp_min_(unit * _SLICE_SCALE)
        sliced = float((distance / size.maximum(slice_rms)).max())
    return OwnError(float((distance / size.clamp_min(unit)).max()), rms_of(distance) / unit, sliced)


def only(values: torch.Tensor, usable: torch.Tensor) -> torch.Tensor:
    """The usable elements."""
    # Picking elements takes many times as long as looking whether that is needed.
    return values if bool(usable.all()) else values[usable]


def peak_of(values: torch.Tensor) -> float:
    """The largest magnitude, 0 of nothing."""
    if not values.numel():
        return 0.0
    low, high = values.aminmax()
    return max(-float(low), float(high))


def rms_of(values: torch.Tensor) -> float:
    """Root of the mean square, 0 of nothing."""
    # Scaled first, so that squares neither overflow nor vanish.
    peak = peak_of(values)
    return 0.0 if peak == 0.0 else peak * float((values.double() / peak).square_().mean().sqrt())
