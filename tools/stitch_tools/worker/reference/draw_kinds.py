"""Names of draws and probes; free of torch, so that the controller can read them, too."""

from dataclasses import dataclass

STRUCTURED = (
    "signed",
    "negative",
    "scaled",
    "outliers",
    "peaks",
    "amplified",
    "spikes",
    "towers",
    "constants",
    "zeros",
    "near-constant",
    "permuted",
    "flipped",
)
"""Kinds of other values, in the order in which a check makes them."""

BATCHES = ("batch-probe", "batch-larger", "batch-1")
"""Kinds of another leading size: about half of the task's own, about one and a half of it, and one."""

ALTERED = "altered"
"""The values of an earlier draw but for a few."""

MIXED = "mixed"
"""Own values but for one stretch of each floating input, which comes from another draw."""

EXACT = ("zeros",)
"""Kinds on which nothing is rounded: what is not finite there is not finite by intent."""


def mixed_kind(token: int, donor_seed: int) -> str:
    """The kind of a draw with the stretches that `token` chooses from the draw of another seed."""
    return f"{MIXED}-{token}-{donor_seed}"


@dataclass(frozen=True)
class SensitivityProbe:
    """Weights and inputs under which a task may react."""

    name: str
    inputs: str
    """Kind of the draws."""
    gain: float | None = None
    """Factor on matrices of order 1; None: the weights that the task's own initialisers give."""
    positive: bool = False


PROBES = (
    SensitivityProbe("own", "own-1"),
    SensitivityProbe("order-1", "own-1", 1.0),
    SensitivityProbe("order-1 amplified", "amplified", 1.0),
    SensitivityProbe("order-1 x4", "own-1", 4.0),
    SensitivityProbe("order-1 x4 amplified", "amplified", 4.0),
)
"""In the order in which they are tried."""
