"""How far ratings agree with labels, and with each other: shares, Cohen's kappa, and distances of scores.

Cohen, A coefficient of agreement for nominal scales, 1960.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from statistics import fmean
from typing import TypeVar

from stitch_tools.models.base import Fact

LabelT = TypeVar("LabelT", bound=Hashable)


class LabelAgreement(Fact):
    """How far two sequences of labels agree."""

    pairs: int
    agreed: float | None
    """Share of equal pairs; None without a pair."""
    kappa: float | None
    """Agreement beyond chance: 1 all, 0 as by chance; None where chance alone gives all of it."""
    confusion: dict[str, dict[str, int]]
    """Count by the first and then the second label."""


def agreement(first: Sequence[LabelT], second: Sequence[LabelT]) -> LabelAgreement:
    """The agreement of two sequences.

    Raises:
        ValueError: they differ in length.
    """
    pairs = list(zip(first, second, strict=True))
    confusion: dict[str, dict[str, int]] = {}
    for one, other in pairs:
        row = confusion.setdefault(str(one), {})
        row[str(other)] = row.get(str(other), 0) + 1
    if not pairs:
        return LabelAgreement(pairs=0, agreed=None, kappa=None, confusion=confusion)
    agreed = fmean(one == other for one, other in pairs)
    ones, others = Counter(first), Counter(second)
    chance = sum(ones[label] * others[label] for label in ones) / len(pairs) ** 2
    kappa = None if chance == 1 else (agreed - chance) / (1 - chance)
    return LabelAgreement(pairs=len(pairs), agreed=agreed, kappa=kappa, confusion=confusion)
