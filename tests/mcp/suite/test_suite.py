"""`suite`: a sweep over many references, its rows and its figures."""

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from stitch_mcp.backends.pool import Note
from stitch_mcp.report.page_template import sections_html, sections_markdown
from stitch_mcp.suite.compare import moved_tasks
from stitch_mcp.suite.gpus import gpu_pins
from stitch_mcp.suite.rows import (
    RowFile,
    SuiteProtocol,
    SuiteRow,
    contract_words,
    parse_answer,
    read_sweep,
    row_of,
)
from stitch_mcp.suite.solving import SolvedTask, SolveOrder, SolvePool
from stitch_mcp.suite.summary import sections, summarise, summarise_telling, summary_lines
from stitch_mcp.suite.sweep import Sweep, local_solvers
from stitch_mcp.suite.tasks import SuiteTask, chosen, folder_tasks, in_mode, kernelbench_tasks, level_numbers
from stitch_tools.errors import UsageError
from stitch_tools.machine.devices import Gpu, GpuSearch
from stitch_tools.models.task import Contract
from stitch_tools.task.task_file import build_contract, read_task_file
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


def row(task: str, speedup: float | None, *, counts: bool = True, wall_s: float = 0.0) -> SuiteRow:
    return SuiteRow(task=task, exit_code=0, status="accepted", counts=counts, speedup=speedup, wall_s=wall_s)


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
    assert level_numbers("3, 1,3") == [3, 1]
    for wrong in ("three", "1,,2", ""):
        with pytest.raises(UsageError, match="names no levels"):
            level_numbers(wrong)
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
    for chosen_later in (9, 1):
        RowFile(tmp_path, PROTOCOL.model_copy(update={"task_count": chosen_later}))
        assert read_sweep(tmp_path)[0].task_count == 9, "a comparison knows of how many tasks its shares are"


def test_only_what_counts_is_in_a_mean_and_every_task_in_a_share() -> None:
    rows = [row("a", 2.0), row("b", 8.0), row("c", 0.9), row("d", 50.0, counts=False)]
    rows.append(SuiteRow(task="e", exit_code=3, message="no template"))
    summary = summarise(rows, 6)
    assert (summary.counted, summary.accepted, summary.known, summary.eager.timed) == (3, 4, 5, 3)
    assert summary.eager.geomean == pytest.approx((2.0 * 8.0 * 0.9) ** (1 / 3))
    assert summary.eager.median == 2.0
    assert summary.fast == {"1": 2 / 6, "1.5": 2 / 6, "2": 1 / 6}
    assert summary.slow == ("c",)
    assert summary.failures == {"no program": ("e",)}
    assert "3 of 6 tasks count, 4 accepted, 1 not run; the others: 1 no program." in summary_lines(summary)
    table = sections_markdown("Sweep", sections(rows, 6, PROTOCOL))
    assert "| d | accepted |" in table
    assert "| e | no program: no template |" in table
    assert "| no program | 1 | e |" in table


def test_weak_and_insensitive_tasks_are_left_out_of_a_second_line() -> None:
    rows = [
        row("level1/a", 2.0, wall_s=60.0),
        row("level2/b", 8.0, wall_s=30.0).model_copy(update={"insensitive": True}),
        row("level2/c", 4.0).model_copy(update={"flags": ("weak",)}),
    ]
    telling = summarise_telling(rows, 4)
    assert (telling.tasks, telling.counted, telling.eager.geomean) == (2, 1, pytest.approx(2.0))
    figures = next(part for part in sections(rows, 4, PROTOCOL) if part.title == "Figures")
    assert [line[:3] for line in figures.rows] == [
        ("all", "4", "3"),
        ("without weak and insensitive ones", "2", "1"),
        ("level1", "1", "1"),
        ("level2", "2", "2"),
    ]
    assert figures.rows[0][-1] == "1.5"
    assert figures.rows[0][4:6] == ("4.00x", "4.00x (n=3)")


def test_a_page_of_a_sweep_escapes_what_tasks_say() -> None:
    rows = [SuiteRow(task="a", exit_code=3, message="<script>|x")]
    tables = sections(rows, 1, PROTOCOL)
    assert "<script>" not in sections_html("Sweep", tables)
    assert "no program: &lt;script&gt;|x" in sections_html("Sweep", tables)
    assert "| a | no program: <script>/x |" in sections_markdown("Sweep", tables)


def test_the_conditions_of_a_sweep_are_told() -> None:
    contract = contract_words(Contract.default_for("cuda"))
    assert contract == "matmul fp32, conv tf32, train"
    both = {"contract": contract, "device": "H100"}
    rows = [row("a", 2.0).model_copy(update={**both, "gpu": name}) for name in "xy"]
    protocol = PROTOCOL.model_copy(update={"mode": "eval", "compile_every": 5})
    assert sections(rows, 2, protocol)[0].notes == (
        "Command: stitch-mcp solve TASK --quick (stitch-mcp 1).",
        "Device: H100 on 2 GPUs.",
        "Contract: matmul fp32, conv tf32, train.",
        "Mode: eval.",
        "torch.compile was timed on one task of 5 by number.",
    )


def test_every_nth_task_is_chosen_by_its_number_whatever_else_is() -> None:
    tasks = [SuiteTask(f"{number}_x", Path(f"{number}_x.py"), number) for number in range(1, 11)]
    assert [task.number for task in chosen(tasks, "", 3)] == [1, 4, 7, 10]
    assert [task.number for task in chosen(tasks, "7_,9_", 3)] == [7]


def test_a_mode_is_stated_by_a_task_file_and_relaxes_nothing(tmp_path: Path) -> None:
    for name in ("plain", "told"):
        (tmp_path / f"{name}.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "told.task.toml").write_text('[contract]\nmode = "train"\n', encoding="utf-8")
    plain, told = in_mode(folder_tasks(tmp_path), "eval", tmp_path / "tasks")
    assert told.path == tmp_path / "told.task.toml"
    file = read_task_file(plain.path)
    assert (plain.path.parent / str(file.reference)).resolve() == tmp_path / "plain.py"
    contract = build_contract(file.contract or {}, {}, allow_relaxed=False)
    assert (contract.mode, contract.relaxed) == ("eval", False)


def test_runs_share_the_gpus_that_are_named() -> None:
    gpus = tuple(Gpu(index, "H100", f"GPU-{index}", "sm_90", 80 << 30) for index in range(2))
    search = GpuSearch(gpus, None, None, None)
    assert gpu_pins("1,0", search) == ("GPU-1", "GPU-0")
    assert gpu_pins("all", search) == ("GPU-0", "GPU-1")
    for wrong in ("2", "0,0", ""):
        with pytest.raises(UsageError):
            gpu_pins(wrong, search)
    with pytest.raises(UsageError, match="no GPU"):
        gpu_pins("all", GpuSearch((), None, None, "no driver"))
    names = [row.name for row in local_solvers(3, ("GPU-1", "GPU-0")).status().workers]
    assert names == ["GPU-1", "GPU-0", "GPU-1"]


def test_two_sweeps_differ_in_what_ended_otherwise_or_moved_beyond_noise() -> None:
    def timed(task: str, speedup: float, width: float = 0.01) -> SuiteRow:
        bounds = {"low": speedup * (1 - width), "high": speedup * (1 + width)}
        return row(task, speedup).model_copy(update=bounds)

    before = [timed("a", 2.0), timed("b", 2.0), timed("c", 1.0), timed("noisy", 1.0, 0.3), timed("gone", 1.0)]
    after = [timed("a", 2.04), timed("b", 1.0), timed("c", 3.0), timed("noisy", 1.5, 0.3), timed("new", 1.0)]
    before.append(timed("d", 5.0))
    after.append(SuiteRow(task="d", exit_code=3))
    moved = {one.task: (one.what, one.ratio) for one in moved_tasks(before, after)}
    assert moved == {
        "d": ("how it ended", None),
        "b": ("slower", 0.5),
        "c": ("faster", 3.0),
        "gone": ("only in A", None),
        "new": ("only in B", None),
    }


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


class WorkerBesideOthers:
    """Its first run of `large` finds no memory."""

    name = "fake"
    tries = 0

    def warm_up(self) -> None:
        pass

    def run(self, order: SolveOrder, note: Note) -> SolvedTask:
        if order.name != "large":
            return SolvedTask(row=row(order.name, 2.0))
        self.tries += 1
        answer = {"error": {"code": "memory_held", "message": "no room"}}
        return SolvedTask(row=row_of("large", answer, 5, 1.0) if self.tries == 1 else row("large", 3.0))

    def close(self) -> None:
        pass


def test_a_task_that_found_no_memory_beside_others_is_tried_once_more_alone(tmp_path: Path) -> None:
    file = RowFile(tmp_path, PROTOCOL)
    tasks = [SuiteTask(name, tmp_path / name) for name in ("large", "small")]
    seen: list[SuiteRow] = []
    worker = WorkerBesideOthers()
    sweep = Sweep(file, tmp_path / "runs", (), SolvePool([worker, worker]), task_limit_s=1.0)
    sweep.run(tasks, stop=threading.Event(), emit=seen.append)
    assert sorted((one.task, one.status) for one in seen[:2]) == [
        ("large", "unmeasured"),
        ("small", "accepted"),
    ]
    assert [(one.task, one.status) for one in seen[2:]] == [("large", "accepted")]
    assert {name: one.speedup for name, one in file.read().items()} == {"large": 3.0, "small": 2.0}


class InterruptedWorker:
    """Is interrupted in its first run, and has no row of it."""

    name = "fake"

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self.is_closed = threading.Event()

    def warm_up(self) -> None:
        pass

    def run(self, order: SolveOrder, note: Note) -> SolvedTask:
        self.stop.set()
        assert self.is_closed.wait(20.0)
        return SolvedTask(row=None)

    def close(self) -> None:
        self.is_closed.set()


def test_a_sweep_that_is_stopped_ends_although_tasks_wait(tmp_path: Path) -> None:
    tasks = [SuiteTask(name, tmp_path / name) for name in ("one", "two", "three")]
    seen: list[SuiteRow] = []
    stop = threading.Event()
    pool = SolvePool([InterruptedWorker(stop)])
    sweep = Sweep(RowFile(tmp_path, PROTOCOL), tmp_path / "runs", (), pool, task_limit_s=1.0)
    sweep.run(tasks, stop=stop, emit=seen.append)
    assert seen == []


@pytest.mark.parametrize("part", ["check", "bench"])
def test_a_program_that_found_no_memory_beside_others_is_unmeasured(part: str) -> None:
    bench = {"program_id": "p", "task_id": "t", "outcome": "unmeasured", "message": "memory ran out"}
    facts: dict[str, object] = {"check": {"memory_held": part == "check"}}
    answer = {
        **facts,
        "status": "accepted",
        "counts": True,
        "bench": {**bench, "memory_held": part == "bench"},
    }
    made = row_of("a", answer, 9, 1.0)
    assert (made.status, made.counts, made.memory_held) == ("unmeasured", False, True)
    assert summarise([made], 1).failures == {"unmeasured": ("a",)}


def test_a_sweep_writes_a_row_a_task_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "relu.py").write_text(REFERENCE, encoding="utf-8")
    (folder / "opaque.py").write_text(
        REFERENCE.replace("torch.relu(x)", "x * x.sum().item()"), encoding="utf-8"
    )
    arguments = ("suite", "folder", "--path", "tasks", "--out", "out", "--jobs", "2")
    env = {**os.environ, "STITCH_BENCH_BUDGET_S": "0.000001"}
    code, printed = call(tmp_path, *arguments, "--only", "opaque", "--json", "--", "--quick", env=env)
    assert code == 0
    assert printed["failures"] == {"no program": ["opaque"]}
    code, printed = call(tmp_path, *arguments, "--json", "--", "--quick", env=env)
    assert [(one["task"], one["status"]) for one in printed["rows"]] == [
        ("opaque", None),
        ("relu", "accepted"),
    ]
    assert "graph of operations" in printed["rows"][0]["message"]
    written = (tmp_path / "out" / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(written) == 2, "what was known was not run again"
    summary = (tmp_path / "out" / "summary.md").read_text(encoding="utf-8")
    assert "| relu | counts" in summary
    assert "Contract: matmul fp32, conv fp32, train." in summary
    assert "<td>relu</td>" in (tmp_path / "out" / "summary.html").read_text(encoding="utf-8")
    code, compared = call(tmp_path, "suite", "compare", "out", "out", "--out", "moved.md")
    assert (code, compared["command"], compared["moved"]) == (0, "suite compare", [])
    assert "No task moved." in (tmp_path / "moved.md").read_text(encoding="utf-8")
    again = subprocess.run(
        [*COMMAND, *arguments, "--", "--target", "cuda"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 2
    assert "other options" in again.stderr
