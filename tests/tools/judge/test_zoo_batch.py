"""Judging the zoo in one go: lines as verdicts come, going on where a run ended, stuck judges replaced."""

import json
import subprocess
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.tools.judge.zoo_batch import Batch, Judge, is_left, read_rows, stage_of
from tests.tools.judge.zoo_record import digest
from tests.tools.judge.zoo_runner import load_cases

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu-zoo"
CASES = {f"{case.kind}/{case.name}": case for case in load_cases("cuda")}

ECHO = """
import json, sys, time
for line in sys.stdin:
    name = line.strip().partition("/")[2]
    if name == "kernel_without_an_end":
        time.sleep(600)
    if name == "device_trap":
        sys.exit(3)
    row = dict(name=name, kind="cheats", family="f", probes=["reuse"], known_miss=False, digest="d",
               revision="r", load=0.5, right=True, status="incorrect")
    print(json.dumps(row), flush=True)
"""
ECHO_COMMAND = (sys.executable, "-c", ECHO)


def batch(lines: Path, *names: str, until_s: float = float("inf"), limit_s: float = 30.0) -> Batch:
    cases = [CASES[f"cheats/{name}"] for name in names]
    return Batch(cases, lines, ECHO_COMMAND, until_s, limit_s, lambda _: None)


@pytest.mark.slow
def test_cases_are_judged_by_the_real_judge_and_need_not_be_judged_again(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    command = (sys.executable, str(SCRIPT), "--target", "cpu", "--out", str(out), "--only", "tanh_near_zero")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    rows = read_rows(out)
    assert [(row.name, row.right, row.status) for row in rows.values()] == [
        ("tanh_near_zero", True, "incorrect"),
        ("canary", True, "accepted"),
    ]
    assert "| tanh_near_zero | input_range_assumed | yes | incorrect | structured |" in done.stdout
    (case,) = (case for case in load_cases("cpu") if case.name == "tanh_near_zero")
    assert not is_left(case, rows)


def test_what_may_disturb_others_has_the_device_alone(tmp_path: Path) -> None:
    alone_at: list[bool] = []

    def turn(alone: bool) -> AbstractContextManager[None]:
        alone_at.append(alone)
        return nullcontext()

    harmless = next(case.name for case in CASES.values() if case.kind == "cheats" and stage_of(case) == 0)
    work = batch(tmp_path / "rows.jsonl", "device_trap", harmless)
    work.turn = turn
    work.run(2)
    assert alone_at == [False, True], "the harmless case comes first"


def test_a_judge_that_is_stuck_or_dies_is_replaced_and_its_case_is_no_verdict(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    work = batch(lines, "device_trap", "kernel_without_an_end", "device_reset_in_forward", limit_s=5.0)
    work.start_s = 0.0
    work.run(1)
    rows = read_rows(lines)
    assert [row.status for row in rows.values()] == ["error", "error", "incorrect"]
    assert is_left(CASES["cheats/device_trap"], rows)


def test_a_verdict_counts_for_the_files_that_it_was_made_on(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    batch(lines, "kernel_does_nothing").run(1)
    case, rows = CASES["cheats/kernel_does_nothing"], read_rows(lines)
    assert is_left(case, rows)
    judged = replace(rows["cheats/kernel_does_nothing"], digest=digest(case))
    assert not is_left(case, {"cheats/kernel_does_nothing": judged})


def test_no_case_is_begun_after_the_limit(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    batch(lines, "kernel_does_nothing", until_s=0.0).run(2)
    assert read_rows(lines) == {}


def test_a_case_that_the_limit_cut_off_is_left_to_the_next_run(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    work = batch(lines, "kernel_without_an_end", until_s=time.monotonic() + 0.5)
    work.ending_s = 0.5
    work.run(1)
    assert read_rows(lines) == {}


def test_harmless_cases_come_first_and_those_that_may_ruin_the_device_last() -> None:
    stages = {name.partition("/")[2]: stage_of(case) for name, case in CASES.items()}
    assert stages["kernel_does_nothing"] == 0
    assert stages["side_stream_never_joined"] == 1
    assert stages["operators_in_inline_cpp"] == 0
    harmful = ("kernel_without_an_end", "kernel_that_stays", "wild_reads_on_gpu")
    assert {stages[name] for name in harmful} == {2}


def test_a_torn_last_line_is_left_out_and_a_later_row_replaces_an_earlier_one(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    with Judge(ECHO_COMMAND) as judge:
        row = judge.ask("cheats/some", 10.0)
    assert row is not None
    earlier = json.dumps({**asdict(row), "right": False})
    lines.write_text("\n".join((earlier, json.dumps(asdict(row)), '{"name": "tor')), encoding="utf-8")
    assert read_rows(lines) == {"cheats/some": row}
