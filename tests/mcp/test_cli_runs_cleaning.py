"""`runs diff`, `runs rm` and `runs gc`."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stitch_mcp.cli import main
from stitch_planner.runs.run import Workspace
from stitch_tools.storage.garbage import SETTLED_S
from tests.mcp.report.run_support import add_bench, add_build, add_check, add_program, open_run

Call = Callable[..., dict[str, Any]]
SHARED = "int shared() { return 1; }\n"


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """A subcommand of `runs` in this workspace; its JSON object, with the exit code."""

    def run(*arguments: str) -> dict[str, Any]:
        code = main(["runs", *arguments, "--workspace", str(tmp_path), "--json"])
        return {**json.loads(capsys.readouterr().out), "code": code}

    return run


def two_programs(root: Path, second: str) -> str:
    """A run of two accepted programs that share a file; the second one is faster. Its id."""
    run = open_run(root)
    for text, speedup in (("int a;\nint b;\n", 2.0), (second, 4.0)):
        program = add_program(run, text, files={"shared.h": SHARED})
        add_build(run, program)
        add_check(run, program)
        add_bench(run, program, {"eager": (speedup, speedup - 0.1, speedup + 0.1)})
    run.close()
    return run.run_id


def make_old(root: Path) -> None:
    """As if every blob had been stored long ago."""
    before = time.time() - SETTLED_S - 60
    for path in Workspace(root).store.root.rglob("*"):
        os.utime(path, (before, before))


def blobs(root: Path) -> set[str]:
    return {path.name for path in Workspace(root).store.root.rglob("*") if path.is_file()}


def test_the_best_program_is_compared_with_the_first_one(tmp_path: Path, call: Call) -> None:
    run_id = two_programs(tmp_path, "int a;\nint c;\n")
    answer = call("diff")
    assert (answer["first"], answer["second"]) == (f"{run_id}:000", f"{run_id}:001")
    rows = {row["what"]: (row["first"], row["second"]) for row in answer["rows"]}
    assert rows["speedup over eager"] == ("2.00x", "4.00x")
    assert rows["eager, us"] == ("10", "10")
    lines = answer["diff"].splitlines()
    assert "-int b;" in lines
    assert "+int c;" in lines
    assert not any("shared" in line for line in lines)


def test_runs_that_are_compared_show_the_settings_that_differ(tmp_path: Path, call: Call) -> None:
    first = two_programs(tmp_path, "int c;\n")
    open_run(tmp_path, coder="manual").close()
    second = call("list")["runs"][-1]["run_id"]
    assert call("diff", first, second)["error"]["message"] == f"run {second} has no program yet"
    other = open_run(tmp_path, coder="manual")
    add_program(other, "int c;\n", files={"shared.h": SHARED})
    other.close()
    rows = {row["what"]: (row["first"], row["second"]) for row in call("diff", first, "last")["rows"]}
    assert rows["coder"] == ("stitcher", "manual")
    assert "torch" not in rows


def test_a_round_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, call: Call) -> None:
    two_programs(tmp_path, "int c;\n")
    answer = call("diff", "last:7")
    assert answer["code"] == 2
    assert answer["error"]["hint"] == "its programs: 000, 001"


def test_what_a_removed_run_alone_has_named_is_garbage(tmp_path: Path, call: Call) -> None:
    first, second = (two_programs(tmp_path, text) for text in ("int c;\n", "int d;\n"))
    make_old(tmp_path)
    before = blobs(tmp_path)
    assert call("gc")["removed"] == 0
    assert [row["run_id"] for row in call("rm", first)["removed"]] == [first]
    assert [row["run_id"] for row in call("list")["runs"]] == [second]
    expected = call("gc", "--dry-run")["removed"]
    assert blobs(tmp_path) == before
    assert call("gc")["removed"] == expected > 0
    assert len(blobs(tmp_path)) == len(before) - expected
    assert call("gc")["removed"] == 0
    # All that the other run needs is there, also what both had named.
    assert call("show")["check"]["status"] == "accepted"
    assert "+int d;" in call("diff")["diff"]


def test_what_was_stored_a_moment_ago_is_kept(tmp_path: Path, call: Call) -> None:
    store = Workspace(tmp_path).store
    store.put(b"new")
    old = store.put(b"asked for again")
    make_old(tmp_path)
    store.put(b"asked for again")
    assert (call("gc")["removed"], blobs(tmp_path)) == (1, {old})
    assert (call("gc", "--now")["removed"], blobs(tmp_path)) == (1, set())


def test_what_a_job_names_is_kept(tmp_path: Path, call: Call) -> None:
    workspace = Workspace(tmp_path)
    named = workspace.store.put(b"for a client")
    job = workspace.folder / "jobs/0123456789abcdef/state.json"
    job.parent.mkdir(parents=True)
    job.write_text(json.dumps({"program": named}), encoding="utf-8")
    make_old(tmp_path)
    assert (call("gc")["kept"], blobs(tmp_path)) == (1, {named})


def test_nothing_outside_is_touched_through_a_link(tmp_path: Path, call: Call) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ("a" * 64)).write_text("mine", encoding="utf-8")
    workspace = Workspace(tmp_path)
    workspace.store.put(b"new")
    (workspace.store.root / "aa").symlink_to(outside)
    workspace.runs_folder.mkdir()
    (outside / "events.jsonl").touch()
    (workspace.runs_folder / "20260101-linked").symlink_to(outside)
    call("gc", "--now")
    assert call("rm", "2026")["error"]["code"] == "store"
    assert sorted(path.name for path in outside.iterdir()) == ["a" * 64, "events.jsonl"]


def test_a_run_at_work_is_not_removed(tmp_path: Path, call: Call) -> None:
    run = open_run(tmp_path)
    assert call("rm", "last")["error"]["code"] == "locked"
    run.close()
    assert call("rm", "last", run.run_id)["code"] == 0
    assert call("list")["runs"] == []


def test_a_wrong_name_among_others_removes_nothing(tmp_path: Path, call: Call) -> None:
    run_id = two_programs(tmp_path, "int c;\n")
    assert call("rm", run_id, "no-such-run")["code"] == 2
    assert len(call("list")["runs"]) == 1
