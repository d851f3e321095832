"""Which elements of a discrete output rounding alone decides: what other evaluations made of them.

A program is right where it decides as an honest evaluation might have: it may be one more evaluation, which
decides a few other elements otherwise than those that were seen.
"""

import torch

# Times the largest honest difference: numbers further off are no rounding of any kind.
_FAR = 1024.0


class Decisions:
    """Honest evaluations of one discrete output beside the oracle's."""

    def __init__(self, oracle: torch.Tensor, *, factor: float) -> None:
        self._oracle = oracle
        self._factor = factor
        self._otherwise = torch.zeros(oracle.shape, dtype=torch.bool, device=oracle.device)
        self._most = 0
        self._reach = 0.0

    def add(self, value: torch.Tensor) -> None:
        """Count one more evaluation; another form says nothing."""
        if value.shape != self._oracle.shape or value.is_floating_point() or value.is_complex():
            return
        value = value.to(self._oracle.device)
        differs = value != self._oracle
        self._otherwise |= differs
        self._most = max(self._most, int(differs.sum()))
        self._reach = max(self._reach, float(self._distance(value).max()))

    def left_open(self, value: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor | None:
        """Elements that no program can be judged on, where this one is `wrong`; None: there are no such."""
        result = self._otherwise
        if int(wrong.sum()) <= self._factor * self._most:
            # Each evaluation decides others otherwise: a right program may be one more of that kind.
            result = result | (wrong & (self._distance(value) <= _FAR * self._reach))
        return result if bool(result.any()) else None

    def _distance(self, value: torch.Tensor) -> torch.Tensor:
        return (value.double() - self._oracle.double()).abs()
