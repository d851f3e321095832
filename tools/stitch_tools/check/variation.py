"""A wrong draw that shows the reference's own variation, and nothing about the program."""

from collections.abc import Sequence

from stitch_tools.models import DrawResult, ReferenceFacts


def describe_variation(draws: Sequence[DrawResult], facts: ReferenceFacts) -> str | None:
    """Why the first wrong draw says nothing: the reference varies by more than was allowed there."""
    failed = next((draw for draw in draws if not draw.ok), None)
    wrong = failed and next((row for row in failed.outputs if row.problem), None)
    # Without a bound it is no matter of size: another shape, NaN, other integers.
    if not wrong or wrong.bound is None or facts.repeat_error <= wrong.bound:
        return None
    return (
        "the reference does not repeat itself: two calls on the same inputs differ by"
        f" {facts.repeat_error:.2g} of an output's rms,"
        f" beyond the bound of {wrong.bound:.2g}, so no program can be certified"
    )
