"""Solves a small reference with a model behind the fake endpoint, each step as short as it can be."""

from pathlib import Path
from typing import Any

from stitch_planner.llm.model_settings import ModelSettings
from stitch_planner.loop import SolveResult, solve
from stitch_planner.opening import SolveRequest
from stitch_planner.runs.run import Workspace, read_state
from stitch_planner.runs.state import State
from tests.planner.llm.fake_endpoint import FakeEndpoint


def solve_with(folder: Path, seen: FakeEndpoint, reference: str, **fields: Any) -> SolveResult:
    """The end of a run in the folder, whose model is `fake` at the endpoint."""
    (folder / "model.py").write_text(reference)
    request = SolveRequest(
        workspace=folder,
        reference=str(folder / "model.py"),
        quick=True,
        bench_budget_s=1e-6,
        compile_baselines=False,
        coder="llm",
        model="mine",
        models={"mine": ModelSettings(model="fake", base_url=seen.url)},
        **fields,
    )
    return solve(request)


def state_of(folder: Path) -> State:
    """Where the folder's last run stands."""
    return read_state(Workspace(folder).run_folder("last"))
