"""GRPO with a tiny model on real builds and runs. Needs the extra `rl`: skipped without it.

`stitch-mcp rl train` runs in a process of its own, so that no warning of its libraries fails a test here.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stitch_mcp.rl.training.training_log import read_metrics, read_rollouts

MISSING = [name for name in ("trl", "peft", "transformers") if importlib.util.find_spec(name) is None]
needs_trl = pytest.mark.skipif(bool(MISSING), reason=f"the extra rl is not installed: {', '.join(MISSING)}")

SETTINGS = """
output = "{output}"
seed = 1
[model]
warm_up_steps = 100
lora_rank = {rank}
[policy]
kind = "choices"
[data]
train_rows = [{train}]
heldout_rows = [{heldout}]
parents_per_task = 1
[reward]
preset = "kevin"
[grpo]
steps = {steps}
group_size = {group}
prompts_per_step = {prompts}
learning_rate = {rate}
max_completion_tokens = 6
save_steps = {save}
[backend]
threads = 1
bench_budget_s = 0.1
results = "results"
"""


def settings(folder: Path, output: str, *, steps: int, **changed: object) -> Path:
    fields = {
        "rank": 8,
        "train": '"silu 32x32"',
        "heldout": '"tanh 32x32"',
        "group": 4,
        "prompts": 2,
        "rate": 0.01,
        "save": 1,
        **changed,
    }
    path = folder / f"{output}-{steps}.toml"
    path.write_text(SETTINGS.format(output=output, steps=steps, **fields), encoding="utf-8")
    return path


def run(*arguments: str) -> dict[str, object]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-m", "stitch_mcp", "rl", *arguments, "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return {**answer, "code": done.returncode}


@needs_trl
@pytest.mark.slow
def test_two_steps_learn_from_real_runs_and_a_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole = run("train", "--config", str(settings(tmp_path, "whole", steps=2)))
    assert (whole["code"], whole["last_step"]) == (0, 2)
    metrics = read_metrics(tmp_path / "whole")
    assert [row.step for row in metrics if row.skill == "all"] == [0, 1]
    assert {row.skill for row in metrics} == {"all", "generate", "refine"}
    judged = [row for row in read_rollouts(tmp_path / "whole") if row.key]
    assert judged
    statuses = {row.status for row in judged}
    assert statuses <= {"accepted", "incorrect", "rejected_cheat", "lost"}
    if "lost" in statuses:
        # What a busy machine leaves open is judged again when a run is resumed, and may end otherwise then.
        pytest.skip("times were in doubt on a busy machine")

    assert run("train", "--config", str(settings(tmp_path, "parts", steps=1)))["last_step"] == 1
    torn = tmp_path / "parts" / "checkpoint-2"
    torn.mkdir()
    (torn / "adapter_model.safetensors").write_bytes(b"torn")
    refused = run("train", "--config", str(settings(tmp_path, "parts", steps=2)))
    assert (refused["code"], "--resume" in str(refused["error"])) == (2, True)
    parts = run("train", "--config", str(settings(tmp_path, "parts", steps=2)), "--resume")
    assert (parts["first_step"], parts["last_step"], parts["removed"]) == (1, 2, ["checkpoint-2"])
    weights = [tmp_path / name / "final" / "adapter_model.safetensors" for name in ("whole", "parts")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    logs = [tmp_path / name / "metrics.jsonl" for name in ("whole", "parts")]
    assert logs[0].read_bytes() == logs[1].read_bytes()


@needs_trl
@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_mean_reward_rises_and_held_out_tasks_gain_for_both_skills(tmp_path: Path) -> None:
    changed: dict[str, object] = {"rank": 0, "group": 8, "prompts": 4, "rate": 0.001, "save": 24}
    config = str(settings(tmp_path, "out", steps=24, **changed))
    assert run("train", "--config", config)["code"] == 0
    rewards = [row.reward for row in read_metrics(tmp_path / "out") if row.skill == "all"]
    assert sum(rewards[-6:]) / 6 > sum(rewards[:6]) / 6 + 0.05
    answer = run(
        "eval", "--config", config, "--checkpoint", "base", "--checkpoint", "newest", "--samples", "8"
    )
    before, after = answer["evaluations"]  # pyright: ignore[reportGeneralTypeIssues] # a list of two
    shares = [{row["skill"]: row["correct_share"] for row in one["metrics"]} for one in (before, after)]
    assert all(shares[1][skill] > shares[0][skill] for skill in ("generate", "refine"))


@needs_trl
@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_processes_train_one_run_and_number_their_groups_together(tmp_path: Path) -> None:
    # Six completions a process: the second group of four is shared by both.
    config = str(settings(tmp_path, "out", steps=1, rank=0, prompts=3))
    trained = run("train", "--config", config, "--processes", "2")
    assert (trained["code"], trained["last_step"]) == (0, 1)
    groups = [row.group for row in read_rollouts(tmp_path / "out")]
    assert groups == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    generators = (tmp_path / "out" / "checkpoint-1").glob("rng_state_*.pth")
    assert len(list(generators)) == 2


@needs_trl
def test_the_command_names_what_is_wrong_with_settings(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text("output = 'o'\n", encoding="utf-8")
    answer = run("train", "--config", str(path))
    assert answer["code"] == 2
    assert "data.train" in str(answer["error"])


@pytest.mark.skipif(not MISSING, reason="the extra rl is installed")
def test_without_the_extra_the_command_says_how_to_install_it(tmp_path: Path) -> None:
    answer = run("train", "--config", str(settings(tmp_path, "o", steps=1)))
    assert answer["code"] == 5
    assert "stitch-mcp[rl]" in str(answer["error"])


MODEL = """
import sys
from stitch_mcp.rl.training.trainer.tiny_model import make_model, make_tokenizer
tokenizer = make_tokenizer(["# system", "user", "write", "a", "program"])
if sys.argv[2]:
    tokenizer.chat_template = sys.argv[2]
tokenizer.pad_token = None
tokenizer.save_pretrained(sys.argv[1])
make_model(tokenizer, 0).save_pretrained(sys.argv[1])
"""
TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}program"
CODE_SETTINGS = """
output = "out"
[model]
path = "{model}"
[data]
train = "train.jsonl"
refine_share = 0.0
[grpo]
steps = 1
group_size = 2
prompts_per_step = 1
max_completion_tokens = 8
save_steps = 1
"""


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("template", ["", TEMPLATE], ids=["without a chat template", "with one"])
def test_a_model_that_writes_no_program_trains_on_floors_and_stays_finite(
    tmp_path: Path, template: str
) -> None:
    model = tmp_path / "model"
    command = [sys.executable, "-c", MODEL, str(model), template]
    subprocess.run(command, check=True, capture_output=True)
    messages = [{"role": "system", "content": "write"}, {"role": "user", "content": "a program"}]
    row = {"skill": "generate", "task": "t", "reference": "/none.py", "messages": messages}
    (tmp_path / "train.jsonl").write_text(json.dumps(row), encoding="utf-8")
    config = tmp_path / "train.toml"
    config.write_text(CODE_SETTINGS.format(model=model), encoding="utf-8")
    answer = run("train", "--config", str(config))
    assert (answer["code"], answer["reward_after"]) == (0, 0.0)
    (metrics, _) = read_metrics(tmp_path / "out")
    assert metrics.zero_variance_groups == metrics.groups == 1
    assert set(metrics.problems) <= {"truncated", "no_code", "empty"}
    state = json.loads((tmp_path / "out" / "checkpoint-1" / "trainer_state.json").read_bytes())
    assert all(row["loss"] == row["loss"] for row in state["log_history"] if "loss" in row)
