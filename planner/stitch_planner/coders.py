"""Which coder writes the programs of a run."""

from collections.abc import Mapping
from pathlib import Path

from stitch_planner.agents.forecast import describe_forecast
from stitch_planner.agents.model_coder import ModelCoder
from stitch_planner.agents.model_ledger import ModelLedger
from stitch_planner.agents.model_planner import ModelPlanner
from stitch_planner.agents.review_panel import ReviewPanel
from stitch_planner.budget import Budget
from stitch_planner.context import Coder, Planner
from stitch_planner.llm.chat import CallLimits
from stitch_planner.llm.model_settings import ModelLimits, ModelSettings, settings_of
from stitch_planner.llm.providers import open_model
from stitch_planner.runs.run import OUTSIDE, Run, started
from stitch_planner.stitcher_coder import StitcherCoder
from stitch_planner.workbench import Workbench
from stitch_tools.models.program import STITCHER


def planner_of(run: Run, coder: Coder) -> Planner | None:
    """The planner that the run's first event asks for: the model that writes the programs."""
    wanted = started(run.state).planner == "model"
    return ModelPlanner(coder.ledger) if wanted and isinstance(coder, ModelCoder) else None


def coder_of(
    run: Run,
    workbench: Workbench,
    models: Mapping[str, ModelSettings],
    limits: ModelLimits,
    budget: Budget,
) -> Coder:
    """The coder that the run's first event names; the stitcher also where an agent began the run.

    Raises:
        ModelError: its recorded answers, or its agent, are not there.
    """
    first = started(run.state)
    stitcher = StitcherCoder()
    if first.coder in (STITCHER, OUTSIDE):
        return stitcher
    settings = settings_of(first.coder, first.model, models)

    def wait(folder: Path) -> CallLimits:
        return CallLimits(folder, budget.stop, budget.end_s)

    ledger = ModelLedger(
        run=run,
        model=open_model(first.coder, settings, workbench.workspace.root),
        settings=settings,
        limits=limits,
        wait=wait,
        say=workbench.say,
    )
    if ledger.model.may_bill:
        workbench.say(describe_forecast(first, settings or ModelSettings(), limits))
    reviewer = ReviewPanel(ledger) if first.review == "model" else None
    return ModelCoder(first=stitcher, ledger=ledger, reviewer=reviewer)
