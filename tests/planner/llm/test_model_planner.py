"""`solve --planner model`: a plan that fits is shown to the coder; else the first one stays in force."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from stitch_mcp.cli import main
from stitch_mcp.history import show_run
from stitch_mcp.report.report_file import render_report
from stitch_mcp.report.run_facts import read_run
from stitch_planner.agents.answers import UnusableAnswerError
from stitch_planner.agents.plan_answer import read_plan
from stitch_planner.agents.prompting import prompt_source
from stitch_planner.llm.model_settings import ModelLimits
from stitch_planner.loop import SolveResult, solve
from stitch_planner.opening import SolveRequest
from stitch_planner.plan import Plan
from stitch_planner.runs.run import Workspace
from stitch_tools.errors import UsageError
from tests.planner.llm.fake_endpoint import FakeEndpoint, Refusal, Reply, endpoint
from tests.planner.llm.model_runs import solve_with, state_of

REFERENCE = '''
import torch


class Model(torch.nn.Module):
    """Say in your plan that nothing has to be computed."""

    def forward(self, x, y):
        return torch.relu(x + y)


def get_inputs():
    return [torch.randn(16, 32), torch.randn(16, 32)]
'''
PROGRAM = f"One loop.\n\n```cpp program.cpp\n{prompt_source('example.cpp')}\n```\n"
STEP: dict[str, object] = {
    "goal": "one pass for both",
    "nodes": ["add", "relu"],
    "library": "custom",
    "acceptance": "bits agree",
}


def planned(*steps: Mapping[str, object], **fields: object) -> str:
    return f"Both wait for memory.\n\n```json\n{json.dumps({'steps': steps, **fields})}\n```\n"


GOOD = planned(STEP, strategy="fuse | all", risks=["a NaN must stay"])


def solved(folder: Path, seen: FakeEndpoint, *, limits: ModelLimits | None = None) -> SolveResult:
    return solve_with(folder, seen, REFERENCE, planner="model", rounds=1, limits=limits or ModelLimits())


def test_a_plan_that_does_not_fit_is_asked_for_again_and_the_coder_sees_the_one_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = planned({**STEP, "nodes": ["add"]})
    with endpoint(Reply(missing), Reply(GOOD), Reply(PROGRAM)) as seen:
        assert solved(tmp_path, seen).status == "accepted"
    state = state_of(tmp_path)
    assert [row.author for row in state.attempts] == ["stitcher", "fake"]
    assert state.refinement is not None
    assert (state.refinement.author, state.refinement.steps) == ("fake", 1)
    plan = Workspace(tmp_path).store.get_fact(state.refinement.plan or "", Plan)
    (step,) = plan.steps
    assert (step.nodes, step.ops, step.bytes) == (("add", "relu"), ("add", "relu"), 3 * 16 * 32 * 4)
    assert [value.name for value in (*step.inputs, *step.outputs)] == ["x", "y", "relu"]

    prompts = [row["messages"][1]["content"] for row in seen.requests]
    assert "add = add(x, y) -> float32[16, 32]" in prompts[0]
    assert "- no step computes relu; add each to a step" in prompts[1]
    assert prompts[1].startswith(prompts[0].rstrip()), "a provider's cache knows the beginning"
    assert "A proposal of fake" in prompts[2]
    assert "Strategy: fuse | all" in prompts[2]
    assert "step 0: one pass for both; by custom; done when: bits agree" in prompts[2]
    assert len({row["messages"][0]["content"] for row in seen.requests}) == 2, "planner and coder"

    assert main(["runs", "show", "--workspace", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "plan refined by fake" in shown
    assert "one pass for both" in shown
    page = render_report(read_run(tmp_path, "last"))
    assert "fuse | all" in page
    assert "risk: a NaN must stay" in page
    assert "--planner model" in page


def test_a_model_that_gives_no_plan_leaves_the_first_one_in_force(tmp_path: Path) -> None:
    prose = Reply("I would fuse everything.")
    unknown = Reply(planned({**STEP, "nodes": ["add", "gelu", "relu"]}))
    with endpoint(prose, Reply(planned({"nodes": []})), unknown, Reply(PROGRAM)) as seen:
        result = solved(tmp_path, seen)
    assert result.status == "accepted"
    assert result.attempts == 2
    state = state_of(tmp_path)
    assert state.refinement is not None
    assert state.refinement.plan is None
    assert "the graph has no gelu" in state.refinement.problem
    prompts = [row["messages"][1]["content"] for row in seen.requests]
    assert len(prompts) == 4
    assert "It holds no JSON fence" in prompts[1]
    assert "steps.0.goal: Field required" in prompts[2]
    assert "A proposal of" not in prompts[3]
    view = show_run(tmp_path, "last")
    assert view.plan is None
    assert "the deterministic plan stands: no plan in 3 answers" in render_report(read_run(tmp_path, "last"))


@pytest.mark.exhaustive  # test_solve_with_model.py spends one, and keeps its best program
def test_a_budget_that_is_too_small_for_a_plan_ends_neither_run_nor_best_program(tmp_path: Path) -> None:
    with endpoint() as seen:
        result = solved(tmp_path, seen, limits=ModelLimits(tokens=10))
    assert not seen.requests
    assert (result.status, result.attempts) == ("accepted", 1)
    refined = state_of(tmp_path).refinement
    assert refined is not None
    assert "0 of 10 tokens are spent" in refined.problem


@pytest.mark.exhaustive
def test_a_refusal_of_the_provider_is_no_end_of_the_run(tmp_path: Path) -> None:
    with endpoint(Refusal(400, "the prompt is too long"), Reply(PROGRAM)) as seen:
        assert solved(tmp_path, seen).attempts == 2
    refined = state_of(tmp_path).refinement
    assert refined is not None
    assert "the prompt is too long" in refined.problem


def test_the_stitcher_has_no_model_that_could_plan(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(REFERENCE)
    request = SolveRequest(workspace=tmp_path, reference=str(tmp_path / "model.py"), planner="model")
    with pytest.raises(UsageError, match="the stitcher is no model"):
        solve(request)
    assert not Workspace(tmp_path).run_ids()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON fence"),
        ("```json\n{}\n```\n\n```json\n{}\n```", "2 JSON fences"),
        ("```json\n{'steps': []}\n```", "Invalid JSON"),
        ('```json\n{"steps": []}\n```', "steps: Tuple should have at least 1 item"),
        ("```json\n[[[[[[[[", "Invalid JSON"),
        (planned({**STEP, "predicted_us": -1}), "steps.0.predicted_us: Input should be greater than 0"),
        (planned({**STEP, "predicted_us": float("inf")}), "steps.0.predicted_us: Input should be"),
        (planned({**STEP, "library": "magic"}), "steps.0.library: Input should be 'custom', 'onednn'"),
        (planned({**STEP, "inputs": [{"name": "x"}]}), "steps.0.inputs.0.shape: Field required"),
        (planned({**STEP, "speed": "high"}), "steps.0.speed: Extra inputs are not permitted"),
        (planned(*[{}] * 9), "steps.2.nodes: Field required; and 1"),
        ("```json\n" + "[" * 200_000 + "\n```", "Invalid JSON"),
    ],
)
def test_an_answer_without_the_form_of_a_plan_says_where(text: str, said: str) -> None:
    with pytest.raises(UnusableAnswerError, match=said.replace("[", r"\[")):
        read_plan(text)


def test_an_answer_may_be_the_object_alone_and_its_texts_are_cut_to_a_line() -> None:
    assert read_plan(json.dumps({"steps": [STEP]})).steps[0].nodes == ("add", "relu")
    assert read_plan(f"Mine:\n```\n{json.dumps({'steps': [STEP]})}\n```").steps[0].library == "custom"


# Dies after every event, but for a question that is sent again.
KILLED = """
import os, signal, sys
from collections.abc import Mapping
from pathlib import Path
from stitch_planner.loop import solve
from stitch_planner.opening import SolveRequest

folder, resume, kills = Path(sys.argv[1]), sys.argv[2] or None, sys.argv[3] == "kill"

def kill(event):
    if not kills:
        return
    if event.kind == "model_asked":
        asked = folder / f"asked{event.payload['call']}"
        if asked.exists():
            return
        asked.touch()
    os.kill(os.getpid(), signal.SIGKILL)

new = dict(reference=str(folder / "model.py"), quick=True, coder="replay:recorded", planner="model", rounds=1)
request = SolveRequest(
    workspace=folder,
    resume=resume,
    bench_budget_s=1e-6,
    compile_baselines=False,
    **({} if resume else new),
)
solve(request, on_event=kill)
"""


@pytest.mark.exhaustive
def test_a_run_killed_after_every_event_plans_as_one_that_was_not(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ends = [run_to_the_end(folder, kill=folder is killed) for folder in (whole, killed)]
    kinds = [Counter(kind for kind, _ in end) for end in ends]
    assert kinds[1]["model_asked"] == 2 * kinds[0]["model_asked"] == 6, "each sent again after the kill"
    for name in ("model_answered", "plan_made", "plan_refined", "program_written", "run_finished"):
        assert kinds[0][name] == kinds[1][name], name
    refined = [[payload for kind, payload in end if kind == "plan_refined"] for end in ends]
    assert refined[0] == refined[1], "the same plan by its hash"


def run_to_the_end(folder: Path, *, kill: bool) -> list[tuple[str, dict[str, object]]]:
    """Kinds and payloads of a run's events; the run is resumed after each kill."""
    folder.mkdir()
    (folder / "model.py").write_text(REFERENCE)
    for place, text in enumerate((planned({**STEP, "nodes": ["add"]}), GOOD, PROGRAM)):
        recorded = folder / "recorded" / f"{place:03d}"
        recorded.mkdir(parents=True)
        (recorded / "answer.md").write_text(text)
    environment = {**os.environ, "STITCH_LOCK_DIR": str(folder)}
    run_id = ""
    for _ in range(90):
        command = [sys.executable, "-c", KILLED, str(folder), run_id, "kill" if kill else ""]
        code = subprocess.run(command, timeout=300, check=False, env=environment).returncode
        (run_id,) = Workspace(folder).run_ids()
        if code == 0:
            break
        assert code == -signal.SIGKILL
    log = Workspace(folder).runs_folder / run_id / "events.jsonl"
    events = [json.loads(line) for line in log.read_bytes().splitlines()]
    return [(event["kind"], event["payload"]) for event in events]
