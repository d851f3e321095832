"""Which difficulty a training draws from, by what it solved lately."""

import random
from collections.abc import Mapping, Sequence

LEVELS = (1, 2, 3)
ADVANCE, FALL_BACK = 0.6, 0.15
"""Correct shares over the newest window of the current level from which it rises, or below which it falls."""
WINDOW = 64
_OWN, _LOWER = 0.7, 0.2
"""Shares of draws from the current level and from those below; the rest comes from the next one."""


def next_level(level: int, correct: Sequence[bool]) -> int:
    """The level after these results of the current one, oldest first; unchanged before a window is full."""
    window = correct[-WINDOW:]
    if len(window) < WINDOW:
        return level
    share = sum(window) / len(window)
    step = 1 if share >= ADVANCE else -1 if share < FALL_BACK else 0
    return min(max(level + step, LEVELS[0]), LEVELS[-1])


def level_shares(level: int) -> Mapping[int, float]:
    """How much of each level is drawn at `level`; earlier ones stay in the mix."""
    lower, upper = [row for row in LEVELS if row < level], [row for row in LEVELS if row == level + 1]
    shares = {level: _OWN}
    shares |= {row: _LOWER / len(lower) for row in lower}
    shares |= dict.fromkeys(upper, 1 - _OWN - _LOWER)
    total = sum(shares.values())
    return {row: share / total for row, share in sorted(shares.items())}


def draw_level(level: int, rng: random.Random) -> int:
    """A level to draw a task from."""
    shares = level_shares(level)
    return rng.choices(list(shares), weights=list(shares.values()))[0]
