"""Tasks of a sweep that are timed once more at its end."""

import threading
from pathlib import Path

from stitch_mcp.suite.rows import SuiteRow
from stitch_mcp.suite.sentinels import (
    Sentinels,
    SentinelTiming,
    bench_arguments,
    choose_sentinels,
    sentinel_lines,
    sentinel_timing,
)
from stitch_mcp.suite.tasks import SuiteTask
from stitch_tools.models.verdict import Bench, Timing


def row(task: str, program_us: float | None = 10.0, *, counts: bool = True) -> SuiteRow:
    return SuiteRow(
        task=task, exit_code=0, status="accepted", counts=counts, program_us=program_us, run_id="1"
    )


def timing(task: str, again_us: float) -> SentinelTiming:
    return SentinelTiming(
        task=task, program_us=100.0, program_again_us=again_us, eager_us=None, eager_again_us=None
    )


def test_sentinels_are_spread_over_what_counts_and_stay_the_same() -> None:
    rows = [row("a"), row("b", counts=False), *(row(name) for name in "cdefg"), row("h", None)]
    assert [one.task for one in choose_sentinels(rows, [], 3)] == ["a", "d", "f"]
    assert [one.task for one in choose_sentinels(rows, ["g", "b", "g"], 2)] == ["g", "a"]
    assert [one.task for one in choose_sentinels(rows, [], 9)] == list("acdefg")
    assert choose_sentinels([], [], 3) == []


def test_a_bench_takes_the_options_of_a_solve_that_say_what_is_timed() -> None:
    solve = ("--quick", "--target", "cuda", "--accept", "weak", "--set=rtol=1e-3", "--coder", "stitcher")
    assert bench_arguments(solve) == ["--quick", "--target", "cuda", "--set=rtol=1e-3"]


def test_a_sentinel_is_a_row_beside_what_was_timed_later() -> None:
    program = Timing(name="program", latency_us=11.0)
    bench = Bench(program_id="p", task_id="t", device="d", outcome="faster", timings=(program,), ratios=())
    found = sentinel_timing(row("a"), {"command": "bench", **bench.model_dump(mode="json")})
    assert found is not None
    assert round(found.drift, 6) == 0.1
    assert sentinel_timing(row("a"), {"error": {"code": "usage"}}) is None


def test_only_a_drift_of_more_than_noise_marks_a_sweep() -> None:
    assert sentinel_lines([]) == []
    (calm,) = sentinel_lines([timing("a", 98.0), timing("b", 101.0)])
    assert calm.startswith("Sentinels timed again: 2; the largest drift of a program is -2.0% (a,")
    said, warned = sentinel_lines([timing("a", 98.0), timing("b", 104.0)])
    assert "+4.0% (b" in said
    assert warned == "The machine drifted by more than 3% meanwhile: b +4.0%."


def test_a_sentinel_that_cannot_be_timed_leaves_no_line(tmp_path: Path) -> None:
    sentinels = Sentinels(tmp_path, tmp_path / "workspace")
    task = SuiteTask("a", tmp_path / "missing.py", 1)
    heard: list[SentinelTiming] = []
    sentinels.run([row("a")], {"a": task}, 1, heard.append)
    assert (heard, sentinels.read()) == ([], [])


def test_none_is_begun_after_an_interrupt(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    # It would look for the task, which is none of those given.
    Sentinels(tmp_path, tmp_path / "workspace").run([row("a")], {}, 1, lambda timing: None, stop=stop)
