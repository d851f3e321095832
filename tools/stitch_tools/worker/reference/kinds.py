"""Names of draws and probes; free of torch, so that the controller can read them, too."""

from dataclasses import dataclass

STRUCTURED = ("signed", "scaled", "outliers", "constants", "zeros", "near-constant", "permuted")
"""Kinds beside `own-N` and `batch-probe`, in the order in which a check makes them."""


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
