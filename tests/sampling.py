"""Long lists of cases: a fixed sample runs by default, `make test ARGS="-m exhaustive"` runs the others."""

from collections.abc import Collection, Iterable

import pytest


def sampled(cases: Iterable[object], keep: int | Collection[object]) -> list[object]:
    """The cases for `parametrize`, of which some are left to the exhaustive run.

    Args:
        cases: one argument each, or a tuple of several.
        keep: the cases of the sample; a number is every so manyth, from the first on.
    """
    rows: list[object] = []
    for place, case in enumerate(cases):
        kept = place % keep == 0 if isinstance(keep, int) else case in keep
        values = case if isinstance(case, tuple) else (case,)
        rows.append(pytest.param(*values, marks=() if kept else pytest.mark.exhaustive))
    return rows
