import argparse
import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from stitch_mcp.suite.rows import RowFile, SuiteProtocol, SuiteRow

SCRIPT = Path(__file__).parents[2] / "scripts" / "kernelbench-exports"


def _script() -> ModuleType:
    loader = SourceFileLoader("kernelbench_exports", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _sweep(folder: Path, *rows: SuiteRow) -> argparse.Namespace:
    file = RowFile(folder, SuiteProtocol(arguments=(), revision="1", task_count=len(rows)))
    for row in rows:
        file.add(row)
    return argparse.Namespace(sweep=folder, only="", count=2)


def test_programs_that_count_are_taken_in_the_order_of_the_sweep(tmp_path: Path) -> None:
    def row(task: str, *, counts: bool = True) -> SuiteRow:
        return SuiteRow(task=task, exit_code=0, status="accepted", counts=counts, run_id="1")

    arguments = _sweep(tmp_path, row("3_C"), row("1_A", counts=False), row("2_B"), row("4_D"))
    assert [one.task for one in _script().programs(arguments)] == ["3_C", "2_B"]


def test_a_program_that_cannot_be_exported_has_a_row_that_says_so(tmp_path: Path) -> None:
    script = _script()
    row = SuiteRow(task="level3/1_A", exit_code=0, status="accepted", counts=True, run_id="none")
    files = script.exported([row], tmp_path / "workspace", tmp_path)
    judged = script.judged(row, files[row.task], tmp_path)
    assert (judged.compiled, judged.correct) == (False, False)
    assert judged.remark.startswith("not exported: ")
    assert judged.line.startswith("| level3/1_A | no | no |")


def test_a_row_compares_kernelbenchs_times_with_our_speedup() -> None:
    row = _script().ExportRow(
        task="1_A",
        compiled=True,
        correct=True,
        runtime_ms=0.5,
        reference_ms=1.0,
        speedup=2.1,
        low=2.0,
        high=2.2,
    )
    assert row.line == "| 1_A | yes | yes | 0.5 | 1 | 2.00x | 2.10x (2.00 to 2.20) |  |"
