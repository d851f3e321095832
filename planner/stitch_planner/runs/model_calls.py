"""The questions of a run to a model, and what they have cost."""

from collections.abc import Sequence

from stitch_planner.runs.run_events import ModelAnswered, ModelAsked
from stitch_tools.models.base import Fact


class ModelCall(Fact):
    """One question; sent more than once where no answer came."""

    asked: ModelAsked
    sent: int = 1
    """How often it was sent."""
    answered: ModelAnswered | None = None

    @property
    def tokens(self) -> int:
        """Tokens that it may have taken: each sending without an answer counts with its upper bound."""
        lost = self.sent - (self.answered is not None)
        return lost * self.asked.most_tokens + (self.answered.tokens if self.answered else 0)

    @property
    def usd(self) -> float | None:
        """As `tokens`, in dollars; None where the price is not known."""
        if self.asked.most_usd is None:
            return None
        lost = self.sent - (self.answered is not None)
        return lost * self.asked.most_usd + ((self.answered.usd or 0.0) if self.answered else 0.0)


ModelCalls = tuple[ModelCall, ...]


def with_call(calls: ModelCalls, event: ModelAsked | ModelAnswered) -> ModelCalls:
    """The calls after one more question, the same one again, or an answer."""
    known = next((row for row in calls if row.asked.call == event.call), None)
    if isinstance(event, ModelAsked):
        if known is None:
            return (*calls, ModelCall(asked=event))
        changed = known.model_copy(update={"sent": known.sent + 1})
    elif known is None:
        return calls  # A log that was cut at its front: nothing was asked as far as anybody knows.
    else:
        changed = known.model_copy(update={"answered": event})
    return tuple(changed if row is known else row for row in calls)


def spent_tokens(calls: Sequence[ModelCall]) -> int:
    """Tokens of all calls, at most."""
    return sum(row.tokens for row in calls)


def spent_usd(calls: Sequence[ModelCall]) -> float | None:
    """Dollars of all calls, at most; None where a price is not known."""
    prices = [row.usd for row in calls]
    return None if None in prices else sum(price for price in prices if price is not None)
