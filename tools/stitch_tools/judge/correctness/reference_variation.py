"""A wrong draw that shows the reference's own variation, and nothing about the program."""

from collections.abc import Sequence

from stitch_tools.models.task import ReferenceFacts
from stitch_tools.models.verdict import DrawResult, OutputError


def describe_variation(draws: Sequence[DrawResult], facts: ReferenceFacts) -> str | None:
    """Why the first wrong draw says nothing: a wrong output of it varies by more than was allowed there."""
    failed = next((draw for draw in draws if not draw.ok), None)
    wrong = [row for row in failed.outputs if row.problem] if failed else []
    row = next((row for row in wrong if _varies(row, facts)), None)
    if row is None:
        return None
    return (
        "the reference does not repeat itself: in two calls on the same inputs"
        f" output {row.output} differs by {_variation(row, facts):.2g} of its rms,"
        f" beyond the bound of {row.bound:.2g}, so no program can be certified"
    )


def _varies(row: OutputError, facts: ReferenceFacts) -> bool:
    # Without a bound it is no matter of size: another shape, NaN, other integers.
    return row.bound is not None and _variation(row, facts) > row.bound


def _variation(row: OutputError, facts: ReferenceFacts) -> float:
    """What the output differs by; facts of older versions know only the largest of all outputs."""
    return facts.repeat_errors.get(row.output, 0.0) if facts.repeat_errors else facts.repeat_error
