"""Candidates that crash, hang and fork, through the real judge in a worker process."""

from pathlib import Path

import pytest

from stitch_mcp.rl.backends.jobs import JudgeJob, JudgeSettings
from stitch_mcp.rl.backends.judge_backend import JudgeBackend, head_of
from stitch_mcp.rl.reward.judge_workers import local_judges
from stitch_mcp.rl.training.variants.rows import RowsTask, render_variant

GOOD = ("math:polynomial", "walk:rows", "threads:one", "shortcut:none")
FORWARD = "int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {\n"
FAULTS = {
    "crashed": "__builtin_trap();",
    "timed_out": "volatile bool on = true; while (on) {}",
    "build_failed": "no such word;",
}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_candidate_that_crashes_hangs_or_forks_is_a_result(tmp_path: Path) -> None:
    task = RowsTask(3, 16, 16)
    reference = str(task.write_reference(tmp_path / "tasks"))
    (path, source), *_ = render_variant(task, GOOD, "cpu").items()
    bodies = {**FAULTS, "forks": "if (fork() == 0) for (;;) pause();"}
    jobs = [
        JudgeJob(
            reference=reference,
            files={path: "#include <unistd.h>\n" + source.replace(FORWARD, f"{FORWARD}  {body}\n")},
        )
        for body in bodies.values()
    ]
    settings = JudgeSettings(
        workspace=str(tmp_path / "judge"), threads=1, bench_budget_s=0.1, time_limit_s=40.0
    )
    pool = local_judges(head_of(settings), workers=1, limit_s=120.0)
    with JudgeBackend(settings, tmp_path / "results", pool) as backend:
        results = backend.judge([*jobs, JudgeJob(reference=reference, files={path: source})])
    *faulty, good = results
    assert all(row.outcome == "judged" for row in results)
    assert [row.status for row in faulty[:3]] == list(FAULTS)
    assert faulty[3].status in ("rejected_cheat", "crashed", "timed_out", "accepted")
    assert good.status == "accepted"
