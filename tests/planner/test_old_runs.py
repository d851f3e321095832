"""A run and a certificate of version 0.1, written before there were attempts and verdicts, are still read.

`tests/data/run-0.1` is what `stitch-mcp solve model.py --quick` left in its workspace, on a CPU: events,
store and certificate. Its paths are those of that workspace.
"""

import shutil
from pathlib import Path

import pytest

from stitch_planner.runs.recorder import record_program
from stitch_planner.runs.run import Run, Workspace, lost_step, read_attempts, read_state
from stitch_planner.runs.run_events import BenchFinished, CheckFinished, ProgramWritten, RunResumed
from stitch_tools.models.program import Program
from stitch_tools.models.verdict import Bench, Check

DATA = Path(__file__).parents[1] / "data/run-0.1"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    shutil.copytree(DATA, tmp_path / ".stitch")
    return Workspace(tmp_path)


def test_an_old_run_replays_to_one_attempt(workspace: Workspace) -> None:
    folder = workspace.run_folder("last")
    unread = read_state(folder)
    assert unread.best is None, "its events hold no verdict"
    state = read_attempts(folder, workspace.store)
    (attempt,) = state.attempts
    assert state.current == state.best == state.result == attempt
    assert unread.result is not None
    assert unread.result.program_id == attempt.program_id
    assert (attempt.status, attempt.counts, attempt.round, attempt.author) == ("accepted", True, 0, "")
    assert (state.status, state.certificate is not None) == ("accepted", True)
    assert attempt.bench is not None
    assert attempt.bench.safe_speedup is not None, "what its events lack comes from the evidence"
    assert attempt.bench.speedup is not None
    assert attempt.bench.speedup > attempt.bench.safe_speedup > 1.0


def test_an_old_run_whose_evidence_is_gone_is_still_read(workspace: Workspace) -> None:
    shutil.rmtree(workspace.store.root)
    (attempt,) = read_attempts(workspace.run_folder("last"), workspace.store).attempts
    assert (attempt.counts, attempt.safe_speedup) == (True, None)


def test_an_old_run_takes_further_programs(workspace: Workspace) -> None:
    run = Run(workspace.run_folder("last"), workspace.store)
    assert lost_step(run) is None
    files = workspace.store.put_files({"program.cpp": b"int x;"})
    record_program(run, Program(format="native", target="cpu", files=files, main="program.cpp"))
    run.close()
    state = read_attempts(run.folder, workspace.store)
    first, second = state.attempts
    assert (state.best, state.current, state.finished) == (first, second, None)
    assert isinstance(second.program, ProgramWritten)
    assert (run.folder / "rounds/001/program/program.cpp").read_bytes() == b"int x;"


def test_an_old_partial_program_does_not_count_nor_when_its_timing_is_lost(tmp_path: Path) -> None:
    name, store = "a" * 64, Workspace(tmp_path).store
    check = Check(program_id=name, task_id="t", status="accepted", flags=("partial",))
    bench = Bench(program_id=name, task_id="t", outcome="faster")
    run = Run(tmp_path / "run", store)
    run.record(ProgramWritten(program="b" * 64, program_id=name))
    # Events of versions without verdicts: `counts` is None.
    run.record(CheckFinished(program_id=name, check=store.put_fact(check), status="accepted"))
    run.record(BenchFinished(program_id=name, bench=store.put_fact(bench), outcome="faster"))
    assert run.state.best is None
    run.record(RunResumed(step="bench", program_id=name))
    (attempt,) = run.state.attempts
    assert (attempt.bench, attempt.accepted, attempt.counts) == (None, True, False)
    run.close()
