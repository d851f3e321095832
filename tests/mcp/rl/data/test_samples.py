"""Samples from a run's events, their split, and exports."""

import json
from pathlib import Path

import pytest

from stitch_mcp.rl.data.collection import collect_samples, samples_of_tasks
from stitch_mcp.rl.data.exporting import dataset_card, export_samples
from stitch_mcp.rl.data.near_duplicates import fingerprint
from stitch_mcp.rl.data.samples import read_samples, write_samples
from stitch_mcp.rl.data.splitting import is_heldout, split_samples
from stitch_mcp.rl.data.task_filter import MadeTask
from stitch_mcp.rl.training.prompt_rows import read_rows
from stitch_planner.llm.chat import ChatAnswer, ChatRequest
from stitch_planner.runs.run import Run, Workspace
from stitch_planner.runs.run_events import (
    BenchFinished,
    CheckFinished,
    ModelAnswered,
    ModelAsked,
    ProgramWritten,
    RunStarted,
)
from stitch_tools.errors import UsageError
from stitch_tools.models.program import Program
from stitch_tools.models.task import Task
from stitch_tools.task.references import load_task
from tests.mcp.cli_support import call

SOURCE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""


OBJECT = """import torch


class Squeeze(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def make():
    return [torch.randn(8, 4)]
"""


def record_program(run: Run, text: str, author: str, parent: str | None, speedup: float) -> str:
    store = run.store
    files = store.put_files({"program.cpp": text.encode()})
    program = Program(format="native", target="cpu", files=files, main="program.cpp", author=author)
    identity = program.program_id
    run.record(
        ProgramWritten(program=store.put_fact(program), program_id=identity, author=author, parent_id=parent)
    )
    run.record(CheckFinished(program_id=identity, check="c" * 64, status="accepted", counts=True))
    run.record(
        BenchFinished(
            program_id=identity,
            bench="b" * 64,
            outcome="faster",
            status="accepted",
            counts=True,
            speedup=speedup,
            safe_speedup=speedup,
        )
    )
    return identity


def ask(run: Run, call: int, prompt: str, answer: str) -> None:
    request = ChatRequest(system="rules", prompt=prompt, max_output_tokens=9)
    run.record(ModelAsked(call=call, request=run.store.put_fact(request), model="coder", most_tokens=9))
    answered = run.store.put_fact(ChatAnswer(text=answer, model="coder"))
    run.record(ModelAnswered(call=call, answer=answered, tokens=3))


def record_run(workspace: Workspace, task: Task) -> None:
    """A run of four questions, of which three gave programs."""
    run = Run(workspace.new_run_folder(task), workspace.store)
    run.record(
        RunStarted(
            task=workspace.store.put_fact(task),
            task_id=task.task_id,
            coder="llm",
            quick=True,
            interpreter="python",
            environment="e" * 64,
        )
    )
    first = record_program(run, "// stitched\n", "stitcher", None, 1.5)
    ask(run, 0, "draft one", "drafted")
    second = record_program(run, "// drafted\n", "coder", None, 2.0)
    ask(run, 1, "improve it", "improved")
    record_program(run, "// improved\n", "coder", second, 3.0)
    ask(run, 2, "improve the first", "slower")
    record_program(run, "// slower\n", "coder", first, 1.2)
    ask(run, 3, "a review", "fine")
    run.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path)
    workspace.prepare()
    files = workspace.store.put_files({"ref.py": SOURCE.encode()})
    record_run(workspace, Task(name="relu", files=files, main="ref.py"))
    return workspace


def test_both_skills_are_collected_from_a_run_with_what_was_measured(workspace: Workspace) -> None:
    drafted, improved, slower = collect_samples(workspace)
    assert (drafted.skill, drafted.prompt, drafted.answer) == ("generate", "draft one", "drafted")
    assert (drafted.speedup, drafted.gain, drafted.parent_files) == (2.0, None, {})
    assert (improved.skill, improved.gain) == ("refine", 1.5)
    assert improved.parent_files == {"program.cpp": "// drafted\n"}
    assert slower.gain is not None
    assert slower.gain < 1
    assert len({row.family for row in (drafted, improved, slower)}) == 1
    assert drafted.reference_files == {"ref.py": SOURCE}


def test_entry_and_contract_of_a_run_go_with_its_reference(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "given" / "layers.py"
    path.parent.mkdir()
    path.write_text(OBJECT, encoding="utf-8")
    overrides = {"rtol": 1e-5, "mode": "eval", "variants": ["4"]}
    path.with_name("layers.task.toml").write_text(
        'entry = "Squeeze"\ninputs = "make"\n[contract]\nrtol = 1e-5\nmode = "eval"\nvariants = ["4"]\n',
        encoding="utf-8",
    )
    task = load_task(str(path), workspace=tmp_path, store=workspace.store)
    record_run(workspace, task)
    sample = list(collect_samples(workspace))[-1]
    assert set(sample.reference_files) == {"layers.py", "layers.task.toml"}
    export_samples([sample], "prompts", tmp_path / "prompts.jsonl")
    (row,) = read_rows(tmp_path / "prompts.jsonl")
    again = load_task(row.reference, workspace=tmp_path, store=workspace.store)
    assert again.model_copy(update={"contract": task.contract}) == task
    shown = again.contract.model_dump(exclude={"sources"})
    assert shown == task.contract.model_dump(exclude={"sources"})
    assert overrides["mode"] == again.contract.named_mode


def test_a_contract_that_a_caller_loosened_gives_no_sample(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "loose.py"
    path.write_text(OBJECT.replace("Squeeze", "Model").replace("make", "get_inputs"), encoding="utf-8")
    task = load_task(
        str(path), workspace=tmp_path, store=workspace.store, overrides={"rtol": 0.5}, allow_relaxed=True
    )
    before = len(list(collect_samples(workspace)))
    record_run(workspace, task)
    assert len(list(collect_samples(workspace))) == before


def test_a_run_whose_questions_are_lost_gives_no_sample(workspace: Workspace) -> None:
    request = ChatRequest(system="rules", prompt="draft one", max_output_tokens=9)
    workspace.store.path(request.key).unlink()
    assert [row.prompt for row in collect_samples(workspace)] == ["improve it", "improve the first"]


def test_fine_tuning_takes_the_best_answers_that_are_fast_and_gain(
    workspace: Workspace, tmp_path: Path
) -> None:
    samples = list(collect_samples(workspace))
    result = export_samples(samples, "sft", tmp_path / "sft.jsonl", least_speedup=1.1)
    rows = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["messages"][-1]["content"] for row in rows] == ["drafted", "improved"]
    assert (result.rows, result.left_out) == (2, 1)
    with pytest.raises(UsageError, match="no sample"):
        export_samples(samples, "sft", tmp_path / "none.jsonl", least_speedup=9)


def test_trainers_get_their_own_columns(workspace: Workspace, tmp_path: Path) -> None:
    samples = list(collect_samples(workspace))
    for how in ("trl", "verl", "prompts"):
        export_samples(samples, how, tmp_path / f"{how}.jsonl")
    first = {
        how: json.loads((tmp_path / f"{how}.jsonl").read_text(encoding="utf-8").splitlines()[0])
        for how in ("trl", "verl")
    }
    assert json.loads(first["trl"]["task"]) == {"files": {"ref.py": SOURCE}, "reference": "ref.py"}
    assert [row["role"] for row in first["trl"]["prompt"]] == ["system", "user"]
    assert first["verl"]["reward_model"]["ground_truth"] == first["trl"]["task"]
    rows = read_rows(tmp_path / "prompts.jsonl")
    assert [row.skill for row in rows] == ["generate", "refine", "refine"]
    assert all(Path(row.reference).read_text(encoding="utf-8") == SOURCE for row in rows)


def made(name: str, expression: str) -> MadeTask:
    source = SOURCE.replace("torch.relu(x)", expression)
    operations = fingerprint(source, name).calls
    family = "".join(operations)
    return MadeTask(name=name, operations=operations, family=family, level=1, observed_s=0.1, source=source)


def test_a_split_keeps_families_together_and_drops_near_duplicates() -> None:
    names = ("relu", "tanh", "sigmoid", "exp", "sin", "cos", "erf", "abs", "log1p", "sqrt")
    tasks = [made(f"{name}{size}", f"torch.{name}(x + {size})") for name in names for size in (1, 2)]
    samples = list(samples_of_tasks(tasks, "cpu"))
    train, heldout, report = split_samples(samples, 0.3, benchmarks=[fingerprint(tasks[0].source, "b")])
    assert train
    assert heldout
    assert not {row.family for row in train} & {row.family for row in heldout}
    assert (report.shared_families, report.shared_sources, report.near_pairs) == (0, 0, 0)
    assert report.train + report.heldout + report.dropped == len(samples)
    # The same operations under another family's name: only the comparison of sources finds it.
    twin = heldout[0].model_copy(
        update={"family": next(f for f in map(str, range(99)) if not is_heldout(f, 0.3))}
    )
    twin_train, _, twin_report = split_samples([*samples, twin], 0.3)
    assert twin_report.dropped == 1
    assert twin not in twin_train


def test_samples_survive_a_file_and_a_row_that_misses_a_field_is_named(tmp_path: Path) -> None:
    samples = list(samples_of_tasks([made("relu", "torch.relu(x)")], "cuda:sm_90"))
    path = tmp_path / "samples.jsonl"
    write_samples(path, samples)
    assert list(read_samples(path)) == samples
    fields = json.loads(path.read_bytes())
    del fields["family"]
    path.write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(UsageError, match="line 1: family"):
        read_samples(path)


def test_the_card_counts_what_is_there(workspace: Workspace) -> None:
    card = dataset_card(list(collect_samples(workspace)), "mit")
    assert "3 samples: 1 ask for a program" in card
    assert "license: mit" in card


def test_an_export_writes_its_card_beside_the_file_and_leaves_a_readme_alone(tmp_path: Path) -> None:
    write_samples(tmp_path / "samples.jsonl", samples_of_tasks([made("relu", "torch.relu(x)")], "cpu"))
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    code, _ = call(tmp_path, "rl", "export", "samples.jsonl", "--format", "trl", "--out", "trl.jsonl")
    assert code == 0
    assert "1 samples" in (tmp_path / "trl.card.md").read_text(encoding="utf-8")
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"
