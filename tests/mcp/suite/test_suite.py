"""`suite`: a sweep over many references, its rows and its figures."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from stitch_mcp.suite.rows import RowFile, SuiteProtocol, SuiteRow, parse_answer, row_of
from stitch_mcp.suite.summary import markdown, summarise, summary_lines
from stitch_mcp.suite.tasks import chosen, folder_tasks, kernelbench_tasks
from stitch_tools.errors import UsageError
from tests.mcp.cli_support import COMMAND, call

REFERENCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(16, 32)]
"""
PROTOCOL = SuiteProtocol(arguments=("--quick",), revision="stitch-mcp 1", task_count=2)


def row(task: str, speedup: float | None, *, counts: bool = True) -> SuiteRow:
    return SuiteRow(task=task, exit_code=0, status="accepted", counts=counts, speedup=speedup)


def test_kernelbench_is_found_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    for name in ("level1/10_b.py", "level1/9_a.py", "level3/1_c.py"):
        file = tmp_path / "KernelBench" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    names = [task.name for task in kernelbench_tasks(tmp_path, [1, 3])]
    assert names == ["level1/9_a", "level1/10_b", "level3/1_c"]
    assert [task.name for task in chosen(kernelbench_tasks(tmp_path, [1, 3]), "9_,1_c")] == [
        names[0],
        names[2],
    ]
    with pytest.raises(UsageError, match="level2"):
        kernelbench_tasks(tmp_path, [2])
    with pytest.raises(UsageError, match="nothing"):
        chosen(kernelbench_tasks(tmp_path, [1]), "nothing")


def test_a_task_file_stands_for_the_reference_beside_it(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "b.task.toml"):
        (tmp_path / name).touch()
    assert [task.path.name for task in folder_tasks(tmp_path)] == ["a.py", "b.task.toml"]


def test_a_row_outlasts_a_torn_line_and_a_fault_of_the_machine_is_no_row(tmp_path: Path) -> None:
    rows = RowFile(tmp_path, PROTOCOL)
    rows.add(row("a", 2.0))
    with rows.path.open("ab") as file:
        file.write(b'{"task": "b", "exi')
    rows.add(row("c", 3.0))
    rows.add(SuiteRow(task="d", exit_code=5, message="no compiler"))
    assert list(RowFile(tmp_path, PROTOCOL).read()) == ["a", "c"]
    with pytest.raises(UsageError, match="other options"):
        RowFile(tmp_path, PROTOCOL.model_copy(update={"arguments": ()}))


def test_only_what_counts_is_in_a_mean_and_every_task_in_a_share() -> None:
    rows = [row("a", 2.0), row("b", 8.0), row("c", 0.9), row("d", 50.0, counts=False)]
    rows.append(SuiteRow(task="e", exit_code=3, message="no template"))
    summary = summarise(rows, 6)
    assert (summary.counted, summary.accepted, summary.known, summary.timed) == (3, 4, 5, 3)
    assert summary.speedup_geomean == pytest.approx((2.0 * 8.0 * 0.9) ** (1 / 3))
    assert summary.speedup_median == 2.0
    assert summary.fast == {"1": 2 / 6, "1.5": 2 / 6, "2": 1 / 6}
    assert summary.slow == ("c",)
    assert summary.failures == {"no program": 1}
    assert "3 of 6 tasks count, 4 accepted, 1 not run; the others: 1 no program." in summary_lines(summary)
    table = markdown(rows, summary, PROTOCOL, "Sweep")
    assert "| d | accepted |" in table
    assert "| e | no program: no template |" in table


def test_a_row_takes_its_figures_from_the_answer_and_survives_any_text() -> None:
    assert row_of("a", parse_answer("Traceback"), 1, 2.0).status is None
    answer = {
        "status": "accepted",
        "counts": False,
        "reasons": [{"rule": "partial", "message": "it is partial"}],
        "check": {"flags": ["partial"], "work": {"own": 0.25, "library": 0.5, "pytorch": 0.25}},
        "bench": {
            "program_id": "p",
            "task_id": "t",
            "outcome": "faster",
            "ratios": [
                {"baseline": name, "speedup": gain, "low": gain, "high": gain, "outcome": "faster"}
                for name, gain in (("eager", 3.0), ("compile:default", 2.0), ("compile:max-autotune", 1.5))
            ],
        },
    }
    made = row_of("a", parse_answer(json.dumps(answer)), 3, 2.0)
    assert (made.speedup, made.compiled_speedup, made.graphed_speedup) == (3.0, 1.5, None)
    assert (made.flags, made.own_share, made.reasons) == (("partial",), 0.25, ("it is partial",))


def test_a_sweep_writes_a_row_a_task_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "relu.py").write_text(REFERENCE, encoding="utf-8")
    (folder / "opaque.py").write_text(
        REFERENCE.replace("torch.relu(x)", "x * x.sum().item()"), encoding="utf-8"
    )
    arguments = ("suite", "folder", "--path", "tasks", "--out", "out", "--jobs", "2")
    env = {**os.environ, "STITCH_BENCH_BUDGET_S": "0.000001"}
    code, printed = call(tmp_path, *arguments, "--only", "opaque", "--quick", env=env)
    assert code == 0
    assert printed["failures"] == {"no program": 1}
    code, printed = call(tmp_path, *arguments, "--quick", env=env)
    assert [(one["task"], one["status"]) for one in printed["rows"]] == [
        ("opaque", None),
        ("relu", "accepted"),
    ]
    assert "graph of operations" in printed["rows"][0]["message"]
    written = (tmp_path / "out" / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(written) == 2, "what was known was not run again"
    assert "| relu | counts |" in (tmp_path / "out" / "summary.md").read_text(encoding="utf-8")
    again = subprocess.run(
        [*COMMAND, *arguments, "--target", "cuda"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert again.returncode == 2
    assert "other options" in again.stderr
