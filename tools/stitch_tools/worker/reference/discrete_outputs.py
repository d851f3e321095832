"""Which elements of a discrete output rounding alone decides: what other evaluations made of them.

A program is right where it decides as an honest evaluation might have. How close the oracle's decision was is
known for some operations (margins.py): such an element is open where four times what rounding moves its gap
by is more than the gap. Elsewhere it is only known how many elements another evaluation decides otherwise.
"""

import torch

# Times the largest honest difference: numbers further off are no rounding of any kind.
_FAR = 1024.0


class Decisions:
    """Honest evaluations of one discrete output beside the oracle's."""

    def __init__(self, oracle: torch.Tensor, gap: torch.Tensor | None, *, factor: float) -> None:
        """`gap` is the distance of each of the oracle's decisions from the other one, where it is known."""
        self._oracle = oracle
        self._gap = None if gap is None else gap.to(oracle.device)
        self._factor = factor
        self._otherwise = torch.zeros(oracle.shape, dtype=torch.bool, device=oracle.device)
        self._most = 0
        self._reach = 0.0
        self._moved = None if self._gap is None else torch.zeros_like(self._gap)

    def add(self, value: torch.Tensor, gap: torch.Tensor | None = None) -> None:
        """Count one more evaluation, with the distances of its own decisions; another form says nothing."""
        if value.shape != self._oracle.shape or value.is_floating_point() or value.is_complex():
            return
        value = value.to(self._oracle.device)
        differs = value != self._oracle
        self._otherwise |= differs
        self._most = max(self._most, int(differs.sum()))
        self._reach = max(self._reach, float(self._distance(value).max()))
        if self._gap is not None and self._moved is not None and gap is not None:
            # Infinite in both: there is no other decision, and nothing moved.
            moved = (gap.to(self._gap.device) - self._gap).abs().nan_to_num(nan=0.0)
            self._moved = self._moved.maximum(moved)

    def left_open(self, value: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor | None:
        """Elements that no program can be judged on, where this one is `wrong`; None: there are no such."""
        found = self._otherwise
        if self._gap is not None and self._moved is not None:
            found = found | (self._factor * self._moved > self._gap)
        elif int(wrong.sum()) <= self._factor * self._most:
            # Each evaluation decides others otherwise: a right program may be one more of that kind.
            found = found | (wrong & (self._distance(value) <= _FAR * self._reach))
        return found if bool(found.any()) else None

    def _distance(self, value: torch.Tensor) -> torch.Tensor:
        return (value.double() - self._oracle.double()).abs()
