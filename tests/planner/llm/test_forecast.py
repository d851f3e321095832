"""What a run may spend on its model, said before the first question."""

from stitch_planner.agents.forecast import describe_forecast
from stitch_planner.llm.model_settings import ModelLimits, ModelSettings
from stitch_planner.runs.run_events import RunStarted

FIRST = RunStarted(
    task="", task_id="", coder="llm", rounds=4, quick=True, interpreter="python3", environment=""
)


def test_every_program_may_take_three_answers() -> None:
    settings = ModelSettings(model="m", max_output_tokens=1000)
    said = describe_forecast(FIRST, settings, ModelLimits())
    assert "4 programs in 12 questions at most" in said
    assert "12,000 in all (price unknown)" in said
    assert said.endswith("limit: none")


def test_votes_and_a_plan_are_counted_and_priced() -> None:
    settings = ModelSettings(usd_per_million_input=1.0, usd_per_million_output=10.0, max_output_tokens=1000)
    first = FIRST.model_copy(update={"review": "model", "planner": "model"})
    said = describe_forecast(first, settings, ModelLimits(tokens=50_000, usd=2.5))
    assert "in 27 questions at most" in said
    assert "(0.27 USD)" in said
    assert said.endswith("limit: 50,000 tokens and 2.5 USD")
