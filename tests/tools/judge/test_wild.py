"""Programs found elsewhere: judged once each, over several runs, and compared with two readers' labels."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.judge.wild_table import COUNTS, ROWS, Labels, WildRow, fits, read_rows, report

SCRIPT = Path(__file__).parents[3] / "scripts" / "wild"
REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0 + 1.0

def get_inputs():
    return [torch.randn(64, 256)]

def get_init_inputs():
    return []
"""
INLINE = '''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
torch::Tensor ramp(torch::Tensor x) {
  auto from = x.contiguous();
  auto out = torch::empty_like(from);
  const float* read = from.data_ptr<float>();
  float* written = out.data_ptr<float>();
  for (int64_t i = 0; i < from.numel(); ++i) {
    written[i] = (read[i] < 0.0f ? 0.0f : read[i]) * 2.0f + 1.0f;
  }
  return out;
}
"""
extension = load_inline(name="ramp", cpp_sources=SOURCE, functions=["ramp"])

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return extension.ramp(x)
'''
OPERATORS = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return {}
"""
CASES = {
    "inline": ("load_inline", INLINE, "honest"),
    "operators": ("torch-only", OPERATORS.format("torch.relu(x) * 2.0 + 1.0"), "partial"),
    "negative": ("torch-only", OPERATORS.format("x * 2.0 + 1.0"), "wrong"),
}


def labels_text(labels: dict[str, str]) -> str:
    return "".join(f'[{name}]\nlabel = "{label}"\nreason = ""\n' for name, label in labels.items())


def write_corpus(folder: Path, *names: str) -> Path:
    for name in names:
        kind, candidate, _ = CASES[name]
        case = folder / name
        case.mkdir(parents=True)
        (case / "reference.py").write_text(REFERENCE, encoding="utf-8")
        (case / "candidate.py").write_text(candidate, encoding="utf-8")
        (case / "case.toml").write_text(f'kind = "{kind}"\n', encoding="utf-8")
    text = labels_text({name: CASES[name][2] for name in names})
    for reader in ("1", "2"):
        (folder / f"labels{reader}.toml").write_text(text, encoding="utf-8")
    return folder


def run(corpus: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = (
        sys.executable,
        str(SCRIPT),
        "--corpus",
        str(corpus),
        "--out",
        str(out),
        "--target",
        "cpu",
        *words,
    )
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def row(case: str, status: str = "accepted", *, counts: bool = False, kind: str = "triton") -> WildRow:
    return WildRow(case, kind, "d", "cpu", "r", status=status, counts=counts, reasons=("rule: why",))


@pytest.mark.slow
def test_cases_are_judged_once_and_compared_with_their_labels(tmp_path: Path) -> None:
    corpus, out = write_corpus(tmp_path / "corpus", "operators", "negative"), tmp_path / "rows.jsonl"
    done = run(corpus, out, "--jobs", "2", "--kernelbench")
    assert done.returncode == 0, done.stderr
    rows = read_rows(out, "cpu")
    assert {name: found.status for name, found in rows.items()} == {
        "operators": "accepted",
        "negative": "incorrect",
    }
    assert rows["operators"].flags == ("partial",)
    assert rows["operators"].kernelbench
    assert "| partial | 1 |  | 1 |\n| wrong |  | 1 | 1 |" in done.stdout
    again = run(corpus, out, "--jobs", "2")
    assert "0 of 2 cases are left" in again.stderr
    assert len(out.read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_program_that_builds_its_own_extension_counts_and_is_timed(tmp_path: Path) -> None:
    corpus, out = write_corpus(tmp_path / "corpus", "inline"), tmp_path / "rows.jsonl"
    done = run(corpus, out, "--time", "--limit-s", "480")
    assert done.returncode == 0, done.stderr
    found = read_rows(out, "cpu")["inline"]
    assert found.outcome == COUNTS, found
    assert found.bench is not None


def test_nothing_is_judged_without_time(tmp_path: Path) -> None:
    corpus, out = write_corpus(tmp_path / "corpus", "negative"), tmp_path / "rows.jsonl"
    done = run(corpus, out, "--limit-s", "0")
    assert done.returncode == 1
    assert "not judged: negative" in done.stderr
    assert read_rows(out, "cpu") == {}


def test_a_label_counts_where_both_readers_agree_or_a_third_file_settles_it(tmp_path: Path) -> None:
    first = {"a": "honest", "b": "honest", "c": "wrong"}
    (tmp_path / "labels1.toml").write_text(labels_text(first), encoding="utf-8")
    assert Labels(tmp_path).settled == first
    second = {"a": "honest", "b": "partial", "c": "cheat"}
    (tmp_path / "labels2.toml").write_text(labels_text(second), encoding="utf-8")
    (tmp_path / "labels.toml").write_text(labels_text({"c": "cheat"}), encoding="utf-8")
    labels = Labels(tmp_path)
    assert labels.settled == {"a": "honest", "c": "cheat"}
    text = report({"a": row("a"), "b": row("b"), "c": row("c")}, labels, {})
    assert "## Honest programs that do not count\n\n- a (triton): accepted: rule: why\n" in text
    assert "- c (triton): accepted: rule: why Label: cheat." in text
    assert "- b: honest / partial" in text


def test_an_unknown_label_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "labels1.toml").write_text(labels_text({"a": "fine"}), encoding="utf-8")
    with pytest.raises(ValueError, match="unknown label: fine"):
        Labels(tmp_path)


def test_what_a_label_asks_for() -> None:
    outcomes = (row("a", counts=True), row("a"), row("a", "incorrect"))
    asked = {
        label: [fits(label, found) for found in outcomes]
        for label in ("honest", "specialized", "partial", "wrong", "cheat", "reduced")
    }
    assert asked == {
        "honest": [True, False, False],
        "specialized": [True, True, False],
        "partial": [False, True, False],
        "wrong": [False, False, True],
        "cheat": [False, False, True],
        "reduced": [False, False, True],
    }


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text(json.dumps({**row("a").__dict__, "flags": []}) + '\n{"case": "b', encoding="utf-8")
    assert read_rows(lines, "cpu") == {"a": row("a")}


def test_rows_of_another_target_replace_none(tmp_path: Path) -> None:
    lines, there = tmp_path / "rows.jsonl", replace(row("a", "incorrect"), target="cuda:sm_90")
    lines.write_text(b"\n".join(map(ROWS.dump_json, (row("a"), there))).decode(), encoding="utf-8")
    assert read_rows(lines, "cpu") == {"a": row("a")}
    assert read_rows(lines, "cuda:sm_90") == {"a": there}


def test_whatever_the_judge_fails_with_is_the_row_of_its_case(tmp_path: Path) -> None:
    corpus, out = write_corpus(tmp_path / "corpus", "negative"), tmp_path / "rows.jsonl"
    (corpus / "negative" / "candidate.py").unlink()
    done = run(corpus, out)
    assert done.returncode == 1
    found = read_rows(out, "cpu")["negative"]
    assert found.status == "error"
    assert found.message.startswith("the judge failed: StopIteration")
