"""Binomial probabilities of samples; plain Python: operators of PyTorch would be seen as a program's work."""

import math
from collections.abc import Iterable


def at_most(seen: int, number: int, share: float) -> float:
    """Probability that of `number` samples at most `seen` fall into a part of this size, 0 < share < 1."""
    return _sum(range(seen + 1), number, share)


def at_least(seen: int, number: int, share: float) -> float:
    """Probability that of `number` samples at least `seen` fall into a part of this size, 0 < share < 1."""
    return 1.0 - _sum(range(seen), number, share)


def _sum(numbers: Iterable[int], number: int, share: float) -> float:
    return sum(_chance(seen, number, share) for seen in numbers)


def _chance(seen: int, number: int, share: float) -> float:
    """By logarithms: a thousand samples leave the range of floats."""
    ways = math.lgamma(number + 1) - math.lgamma(seen + 1) - math.lgamma(number - seen + 1)
    return math.exp(ways + seen * math.log(share) + (number - seen) * math.log1p(-share))
