"""What the review of a program found: figures from evidence, and a model's opinion where one was asked."""

from statistics import fmean
from typing import Literal

from pydantic import Field

from stitch_tools.models.base import Fact

ReviewMode = Literal["none", "model"]
RubricName = Literal["honesty", "claims", "bound", "coverage", "effect"]
OpinionName = Literal["bottleneck", "engineering", "focus"]
Score = int


class RubricScore(Fact):
    """One dimension of the rubric, from evidence alone."""

    name: RubricName
    score: Score | None = Field(ge=1, le=5)
    """1 to 5; None where the evidence does not tell."""
    evidence: str
    """One sentence."""


class Opinion(Fact):
    """One dimension as a model sees it: the median of its votes."""

    name: OpinionName
    score: Score | None = Field(ge=1, le=5)
    """None where fewer than two votes could be used."""
    votes: tuple[Score, ...]
    quote: str = ""
    """Code that a vote with that score rests on; it occurs in the program."""
    reason: str = ""


class Review(Fact):
    """The review of one program. It informs; no verdict and no decision depends on it."""

    scores: tuple[RubricScore, ...]
    opinions: tuple[Opinion, ...] = ()
    note: str = ""
    """Why a model's opinion is missing, or votes of it."""

    @property
    def mean(self) -> float | None:
        """Mean of all scores that are known; None where none is."""
        known = [row.score for row in (*self.scores, *self.opinions) if row.score is not None]
        return fmean(known) if known else None

    @property
    def lines(self) -> tuple[tuple[str, str, str], ...]:
        """Dimension, score and evidence, for tables and prompts."""
        rows = [(row.name, _figure(row.score), row.evidence) for row in self.scores]
        for row in self.opinions:
            quote = f"; at `{row.quote}`" if row.quote else ""
            rows.append((f"{row.name} (a model's opinion)", _figure(row.score), f"{row.reason}{quote}"))
        return tuple(rows)


class ReviewSubject(Fact):
    """What a reviewer is shown of a program."""

    task: str
    """Task and plan in the words of a prompt."""
    summary: str
    """What its author says of it."""
    scores: tuple[RubricScore, ...]
    code: str
    """Its sources without comments."""


def _figure(score: Score | None) -> str:
    return "-" if score is None else f"{score} of 5"
