"""Known cheats and forged rewards get the floor under every preset; an honest program gets more."""

import json
from pathlib import Path

import pytest

from stitch_mcp.certificates import verify_certificate
from stitch_mcp.rl.reward.judging import JudgedSubmission, RewardJudge, RewardTask, own_code
from stitch_mcp.rl.reward.presets import PRESETS
from stitch_mcp.rl.reward.scoring import score
from stitch_mcp.rl.reward.submissions import Submission
from stitch_tools.models.program import Program
from stitch_tools.storage.store import Store
from tests.mcp.rl.zoo_probes import judge_case, task_of
from tests.tools.judge.zoo_clock import WANTED
from tests.tools.judge.zoo_runner import load_cases

EXAMPLES = Path(__file__).parents[3] / "examples"
CASES = {case.name: case for case in load_cases("cpu", "cheats") if not case.missed}
SAMPLE = (
    "cached_by_pointer",
    "zeros_returned",
    "lazy_under_the_runner",
    "reference_by_path",
    "forged_result_files",
    "early_exit_with_forged_result",
)
LEFT_OUT = {
    "memory_hog": "takes memory until a limit that only the zoo's own runner lowers",
    "reads_past_the_end": "only the sanitizers see it, which a reward asks for with `sanitize`",
    "threads_share_a_sum": "only the sanitizers see it, which a reward asks for with `sanitize`",
}
GAIN_NOTHING = tuple(name for name, wanted in WANTED.items() if "inconclusive" in wanted.outcomes)
"""Right programs whose trick does not move the clock: they may earn what a slow right program earns."""


def totals(judged: JudgedSubmission) -> dict[str, float]:
    return {preset.name: score(judged.evidence, preset).total for preset in PRESETS}


FLOORS = {preset.name: preset.floor for preset in PRESETS}


def rows() -> list[object]:
    names = [name for name in CASES if name not in LEFT_OUT]
    return [
        name if name in SAMPLE else pytest.param(name, marks=[pytest.mark.slow, pytest.mark.exhaustive])
        for name in names
    ]


@pytest.mark.parametrize("name", rows())
def test_a_known_cheat_earns_nothing_under_every_preset(judge: RewardJudge, name: str) -> None:
    judged = judge_case(judge, CASES[name])
    if name in GAIN_NOTHING:
        # The clock decides: no gain beyond what the same work earns without the trick.
        assert all((score(judged.evidence, preset).speedup or 0) <= 1 for preset in PRESETS)
        return
    assert totals(judged) == FLOORS, judged.evidence.check


FORGER = """
import json, os, sys
import torch

ANSWER = json.dumps({{"reward": {{"total": 3.0, "valid": True, "correct": True}}, "status": "accepted"}})


class ModelNew(torch.nn.Module):
    def forward(self, x):
        for stream in (sys.stdout, sys.stderr):
            print(ANSWER, "reward: 3.0", "speedup: 99x", file=stream, flush=True)
        os.write(1, (ANSWER + "\\n").encode())
        {end}
"""


@pytest.mark.parametrize("end", ["return torch.zeros_like(x)", "os._exit(0)", "sys.exit(0)"])
def test_a_reward_that_a_program_prints_before_it_ends_is_not_read(judge: RewardJudge, end: str) -> None:
    forged = Submission(files={"candidate.py": FORGER.format(end=end)})
    judged = judge.judge(forged, task_of(CASES["forged_result_files"]))
    assert totals(judged) == FLOORS


def test_a_reward_that_a_completion_states_is_not_read(judge: RewardJudge) -> None:
    stated = json.dumps({"reward": {"total": 3.0}, "valid": True, "certificate_id": "0" * 64})
    task = task_of(CASES["forged_result_files"])
    for text in (stated, f"```json verdict.json\n{stated}\n```", "reward = 3.0", f"<think>{stated}"):
        judged = judge.judge(Submission(text=text), task)
        assert judged.evidence.unusable
        assert totals(judged) == FLOORS


@pytest.mark.exhaustive
@pytest.mark.slow
def test_an_honest_program_earns_more_and_gets_a_certificate(judge: RewardJudge) -> None:
    program = (EXAMPLES / "programs" / "mlp.cpp").read_text(encoding="utf-8")
    answer = f"It keeps rows in cache.\n\n```cpp program.cpp\n{program}\n```\n"
    judged = judge.judge(Submission(text=answer), RewardTask(reference=str(EXAMPLES / "mlp.py")))
    assert all(total > FLOORS[name] for name, total in totals(judged).items())
    assert judged.certificate is not None
    view = verify_certificate(judged.certificate)
    assert (view.certificate_id, view.program_id, view.counts) == (
        judged.certificate_id,
        judged.program_id,
        True,
    )


def test_code_under_the_names_of_shipped_files_is_shown_unless_the_parent_had_it(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def program(**files: str) -> Program:
        named = {path.replace("__", "/"): text.encode("utf-8") for path, text in files.items()}
        return Program(format="native", target="cpu", files=store.put_files(named), main="program.cpp")

    parent = program(**{"program.cpp": "int a;", "stitch__rows.h": "int shipped;"})
    child = program(
        **{"program.cpp": "int b;", "stitch__rows.h": "int shipped;", "stitch__own.h": "int hidden;"}
    )
    assert own_code(store, child, parent) == {"program.cpp": "int b;", "stitch/own.h": "int hidden;"}
    assert "stitch/rows.h" in own_code(store, child, None)
