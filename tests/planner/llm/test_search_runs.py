"""Greedy and tree at an equal number of programs, where the way to the fastest leads over a slower draft."""

import re
from pathlib import Path

import pytest

from stitch_planner.agents.prompting import prompt_source
from stitch_planner.llm.model_settings import ModelSettings
from stitch_planner.loop import solve
from stitch_planner.opening import SolveRequest
from stitch_planner.runs.run import Workspace, read_state
from stitch_planner.runs.run_events import SearchName
from stitch_planner.runs.state import State
from tests.planner.llm.fake_endpoint import Reply, endpoint

# The mean over all pairs is x plus a mean: n * n additions become n. Whoever has the pairs as a loop can tune
# that loop for ever.
REFERENCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return (x.unsqueeze(2) + y.unsqueeze(1)).mean(dim=2)


def get_inputs():
    return [torch.randn(4, 256), torch.randn(4, 256)]
"""
OWN_LOOP, ROUNDS = "own loop", 4
PAIRS = """
  for (int64_t k = 0; k < size; ++k) {
    {kind}double sum = 0;
    for (int64_t j = 0; j < width; ++j) sum += (double)x[k] + (double)y[k / width * width + j];
    out[k] = (float)(sum / (double)width);
  }
"""
LINEAR = """
  for (int64_t b = 0; b < size / width; ++b) {
    double sum = 0;
    for (int64_t j = 0; j < width; ++j) sum += y[b * width + j];
    for (int64_t i = 0; i < width; ++i) out[b * width + i] = (float)(x[b * width + i] + sum / (double)width);
  }
"""


def program(loop: str, remark: str) -> Reply:
    """The packaged example with another loop."""
    source = re.sub(r"#pragma omp.*?\n  }\n", lambda _: loop, prompt_source("example.cpp"), flags=re.DOTALL)
    source = source.replace("const int64_t size =", "const int64_t width = args->inputs[0].shape[1], size =")
    return Reply(f"{remark}\n\n```cpp program.cpp\n// {remark}\n{source}\n```\n")


def answer(prompt: str) -> Reply:
    """A model with one idea for each program that it may be shown, whichever search asks."""
    if "Write another program" in prompt:
        return program(PAIRS.replace("{kind}", ""), OWN_LOOP)
    _, _, shown = prompt.partition(": number ")
    if f"// {OWN_LOOP}" in shown:
        return program(LINEAR, "The sum over y leaves the loop.")
    # Of the stitched loop it knows nothing but other loops.
    written = prompt.count(" by fake-model, ")
    return program(PAIRS.replace("{kind}", "volatile "), f"Tuned the loop, attempt {written}.")


def searched(folder: Path, search: SearchName) -> State:
    folder.mkdir()
    (folder / "model.py").write_text(REFERENCE)
    with endpoint(answer) as seen:
        request = SolveRequest(
            workspace=folder,
            reference=str(folder / "model.py"),
            quick=True,
            bench_budget_s=0.2,
            compile_baselines=False,
            coder="llm",
            model="mine",
            models={"mine": ModelSettings(model="fake-model", base_url=seen.url)},
            rounds=ROUNDS,
            search=search,
        )
        solve(request)
        prompts = [row["messages"][1]["content"] for row in seen.requests]
    state = read_state(Workspace(folder).run_folder("last"))
    assert state.started is not None
    assert state.started.search == search
    assert all(row.counts for row in state.attempts), [row.status for row in state.attempts]
    # Pairs are shown by the search that has branches to compare.
    assert ("# Compare" in prompts[-1]) == (search == "tree")
    return state


def fastest(state: State) -> tuple[str, float]:
    best = state.best
    assert best is not None
    assert best.bench is not None
    speed = best.bench.safe_speedup or best.bench.cpu_speedup
    assert speed is not None
    return (best.program.notes or ("",))[0], speed


@pytest.mark.exhaustive
def test_the_tree_leaves_a_branch_in_which_greedy_gets_stuck(tmp_path: Path) -> None:
    greedy, tree = searched(tmp_path / "greedy", "greedy"), searched(tmp_path / "tree", "tree")
    assert len(greedy.attempts) <= 1 + ROUNDS
    assert len(tree.attempts) == 1 + ROUNDS
    assert fastest(tree)[0] == "The sum over y leaves the loop."
    assert fastest(greedy)[0] != fastest(tree)[0]
    assert fastest(tree)[1] > 2 * fastest(greedy)[1]
