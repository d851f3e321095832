"""Scores that a model gives, each with a quote of what it was shown: the part of an answer that counts."""

import json
import re
from collections.abc import Collection
from typing import Generic, TypeVar

from pydantic import Field, ValidationError

from stitch_tools.models.base import Fact

NameT = TypeVar("NameT", bound=str)
_LEAST_QUOTE_CHARS = 8
_JSON_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n```", re.DOTALL)


class QuotedVote(Fact, Generic[NameT]):
    """A model's score of one dimension."""

    dimension: NameT
    score: int = Field(ge=1, le=5, strict=True)
    quote: str
    reason: str


def read_quoted_votes(
    text: str, shown: str, form: type[QuotedVote[NameT]], wanted: Collection[NameT]
) -> tuple[list[QuotedVote[NameT]], int]:
    """The votes of an answer that quote what was shown, and how many of those wanted cannot be used.

    Args:
        text: the answer; its last fenced block, or all of it, is JSON with `votes`.
        shown: what the model saw.
        form: the vote with its dimensions' names.
        wanted: those that were asked for; the first vote of each counts.
    """
    blocks = _JSON_FENCE.findall(text)
    try:
        given = list(json.loads(blocks[-1] if blocks else text)["votes"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return [], len(wanted)
    votes: dict[NameT, QuotedVote[NameT]] = {}
    flat = _flat(shown)
    for row in given:
        try:
            vote = form.model_validate(row)
        except ValidationError:
            continue
        quote = _flat(vote.quote)
        if vote.dimension in wanted and len(quote) >= _LEAST_QUOTE_CHARS and quote in flat:
            votes.setdefault(vote.dimension, vote)
    return list(votes.values()), len(wanted) - len(votes)


def _flat(text: str) -> str:
    """Code without its white space, which models do not repeat exactly."""
    return "".join(text.split())
