"""The pool of judges: order, content hashes, and workers that crash, hang and fork."""

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stitch_mcp.jobs.tree import process_start
from stitch_mcp.rl.backends.jobs import JobResult, JudgeJob, JudgeSettings
from stitch_mcp.rl.backends.judging import SubmissionJudge
from stitch_mcp.rl.backends.local import LocalBackend
from stitch_mcp.rl.backends.results import ResultStore
from stitch_mcp.rl.reward.facts import RewardEvidence
from tests.mcp.rl.evidence import make_check, make_evidence

SCRIPT = Path(__file__).parent / "worker_script.py"
REFERENCE = Path(__file__).parents[4] / "stitch_mcp" / "examples" / "mlp.py"


@contextmanager
def opened(folder: Path, *, workers: int = 1, job_limit_s: float = 30.0) -> Generator[LocalBackend]:
    settings = JudgeSettings(workspace=str(folder))
    command = (sys.executable, str(SCRIPT), settings.model_dump_json())
    backend = LocalBackend(
        settings, folder / "results", workers=workers, job_limit_s=job_limit_s, command=command
    )
    with backend:
        yield backend


def job(text: str) -> JudgeJob:
    return JudgeJob(reference=str(REFERENCE), files={"program.cpp": text})


def test_results_come_in_the_order_of_their_jobs_and_equal_jobs_are_judged_once(tmp_path: Path) -> None:
    judged: list[JobResult] = []
    with opened(tmp_path, workers=2) as backend:
        results = backend.judge([job("a"), job("b"), job("a"), job("c")], judged.append)
        again = backend.judge([job("c"), job("a")], judged.append)
    said = [row.evidence.unusable if row.evidence else None for row in results]
    assert said == ["a", "b", "a", "c"]
    assert len(judged) == 3
    assert again == [results[3], results[0]]


def test_another_backend_knows_the_results_in_the_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        (first,) = backend.judge([job("a")])
    judged: list[JobResult] = []
    with opened(tmp_path) as backend:
        assert list(backend.judge([job("a")], judged.append)) == [first]
    assert judged == []


def test_a_damaged_result_is_judged_again(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        (first,) = backend.judge([job("a")])
        file = tmp_path / "results" / first.key[:2] / f"{first.key}.json"
        file.write_bytes(file.read_bytes()[:40])
        judged: list[JobResult] = []
        assert list(backend.judge([job("a")], judged.append)) == [first]
    assert len(judged) == 1


def test_a_worker_that_dies_once_loses_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        (result,) = backend.judge([job(f"crash once {tmp_path / 'mark'}")])
    assert (result.outcome, result.tries) == ("judged", 2)


@pytest.mark.parametrize("text", ["crash", "garbage"])
def test_a_job_whose_workers_always_fail_is_lost_not_wrong_and_not_kept(tmp_path: Path, text: str) -> None:
    with opened(tmp_path) as backend:
        lost, fine = backend.judge([job(text), job("ok")])
        assert (lost.outcome, lost.status, lost.tries) == ("lost", "lost", 2)
        assert fine.outcome == "judged"
        assert backend.results.find(lost.key) is None


def test_a_worker_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with opened(tmp_path, job_limit_s=1.5) as backend:
        hung, fine = backend.judge([job(f"fork {pid_file}"), job("ok")])
    assert (hung.outcome, hung.status) == ("cancelled", "timed_out")
    assert fine.outcome == "judged"
    assert not process_start(int(pid_file.read_text(encoding="utf-8")))


def test_a_backend_that_is_closed_in_mid_work_starts_no_worker_again(tmp_path: Path) -> None:
    def interrupt(_: JobResult) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt), opened(tmp_path, workers=2) as backend:
        backend.judge([job("ok"), job(f"fork {tmp_path / 'pid'}"), job("hang")], interrupt)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "files",
    [{"program.cu": "int x;"}, {f"{'a' * 300}.cpp": "int x;"}, {"program.cpp": "", "program.cpp/a.h": ""}],
)
def test_what_can_be_no_program_gets_the_floor_and_is_no_fault_of_ours(
    tmp_path: Path, files: dict[str, str]
) -> None:
    judge = SubmissionJudge(JudgeSettings(workspace=str(tmp_path)))
    result = judge.judge(JudgeJob(reference=str(REFERENCE), files=files))
    assert result.outcome == "judged", result.message
    assert result.evidence is not None
    assert result.evidence.unusable


@pytest.mark.parametrize(
    ("evidence", "is_kept"),
    [
        (RewardEvidence(check=make_check("unmeasured")), False),
        (RewardEvidence(check=make_check()), False),
        (RewardEvidence(check=make_check(flags=("incomplete",))), False),
        (RewardEvidence(check=make_check("incorrect")), True),
        (make_evidence(2.0, 2.2), True),
    ],
)
def test_a_result_that_a_busy_machine_left_open_is_not_kept(
    tmp_path: Path, evidence: RewardEvidence, is_kept: bool
) -> None:
    results = ResultStore(tmp_path)
    results.keep(JobResult(key="k", outcome="judged", evidence=evidence))
    assert (results.find("k") is not None) == is_kept


def test_the_key_depends_on_content_and_settings_not_on_places(tmp_path: Path) -> None:
    copy = tmp_path / "copy.py"
    copy.write_bytes(REFERENCE.read_bytes())
    moved = job("a").model_copy(update={"reference": str(copy)})
    settings = JudgeSettings(workspace="/one")
    key = job("a").key(settings)
    assert moved.key(JudgeSettings(workspace="/two")) == key
    assert job("b").key(settings) != key
    assert job("a").key(JudgeSettings(workspace="/one", target="cuda:sm_90")) != key
    copy.write_bytes(REFERENCE.read_bytes() + b"\n")
    assert moved.key(settings) != key
