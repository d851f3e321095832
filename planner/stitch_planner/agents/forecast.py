"""What a run may spend on its model, said before the first question."""

from stitch_planner.agents.asking import ANSWERS
from stitch_planner.agents.review_panel import VOTES
from stitch_planner.llm.model_settings import ROUNDS, ModelLimits, ModelSettings
from stitch_planner.runs.run_events import RunStarted


def describe_forecast(first: RunStarted, settings: ModelSettings, limits: ModelLimits) -> str:
    """A sentence on the most questions and tokens of answers that a whole run takes, and on its limits.

    Prompts are not in it: they grow with what the run finds.
    """
    rounds = first.rounds or ROUNDS
    votes = VOTES if first.review == "model" else 0
    questions = rounds * (ANSWERS + votes) + (ANSWERS if first.planner == "model" else 0)
    tokens = questions * settings.max_output_tokens
    price = settings.cost_usd(0, tokens)
    usd = "price unknown" if price is None else f"{price:.2f} USD"
    most = [f"{limits.tokens:,} tokens"] if limits.tokens is not None else []
    most += [f"{limits.usd:g} USD"] if limits.usd is not None else []
    return (
        f"the model may be asked for {rounds} programs in {questions} questions at most; answers of up to "
        f"{settings.max_output_tokens:,} tokens, {tokens:,} in all ({usd}), and the prompts; "
        f"limit: {' and '.join(most) or 'none'}"
    )
