"""The pool of judges: order, content hashes, and workers that crash, hang and fork."""

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stitch_mcp.config import configure
from stitch_mcp.jobs.tree import process_start
from stitch_mcp.rl.backends.jobs import JobResult, JudgeJob, JudgeSettings
from stitch_mcp.rl.backends.judge_backend import JudgeBackend, head_of
from stitch_mcp.rl.backends.results import ResultStore
from stitch_mcp.rl.reward.facts import RewardEvidence
from stitch_mcp.rl.reward.judge_workers import local_judges
from stitch_mcp.rl.reward.judging import RewardJudge, RewardTask
from stitch_tools.storage.store import Store
from stitch_tools.task.references import load_task
from tests.mcp.rl.evidence import make_check, make_evidence

SCRIPT = Path(__file__).parent / "worker_script.py"
REFERENCE = Path(__file__).parents[4] / "stitch_mcp" / "examples" / "mlp.py"


@contextmanager
def opened(folder: Path, *, workers: int = 1, job_limit_s: float = 30.0) -> Generator[JudgeBackend]:
    settings = JudgeSettings(workspace=str(folder))
    command = (sys.executable, str(SCRIPT))
    pool = local_judges(head_of(settings), workers=workers, limit_s=job_limit_s, command=command)
    with JudgeBackend(settings, folder / "results", pool) as backend:
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
        (again,) = backend.judge([job("a")], judged.append)
    assert (again.key, again.evidence, len(judged)) == (first.key, first.evidence, 1)


def test_a_worker_that_dies_once_loses_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        (result,) = backend.judge([job(f"crash once {tmp_path / 'mark'}")])
    assert (result.outcome, result.tries) == ("judged", 2)


@pytest.mark.parametrize("text", ["crash", "garbage"])
def test_a_job_whose_workers_always_fail_is_lost_not_wrong_and_not_kept(tmp_path: Path, text: str) -> None:
    with opened(tmp_path) as backend:
        lost, fine = backend.judge([job(text), job("ok")])
        assert (lost.outcome, lost.status, lost.tries) == ("lost", "lost", 3)
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
    judge = RewardJudge(configure({"workspace": tmp_path}))
    asked = JudgeJob(reference=str(REFERENCE), files=files).submission
    assert judge.judge(asked, RewardTask(reference=str(REFERENCE))).evidence.unusable


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
    # Outside of a package the name of the file alone counts.
    here, copy = tmp_path / "mlp.py", tmp_path / "other" / "mlp.py"
    copy.parent.mkdir()
    for path in (here, copy):
        path.write_bytes(REFERENCE.read_bytes())

    def key(name: str, reference: Path = here, *, workspace: str = "/one", target: str = "cpu") -> str:
        asked = job(name).model_copy(update={"reference": str(reference)})
        task = load_task(str(reference), workspace=tmp_path, store=Store(tmp_path / "store"))
        return asked.key(task, JudgeSettings(workspace=workspace, target=target))

    first = key("a")
    assert key("a", copy, workspace="/two") == first
    assert key("b") != first
    assert key("a", target="cuda:sm_90") != first
    (copy.parent / f"{copy.stem}.task.toml").write_text("[contract]\nrtol = 1e-6\n", encoding="utf-8")
    assert key("a", copy) != first, "the contract beside the reference counts, too"
    (copy.parent / f"{copy.stem}.task.toml").unlink()
    copy.write_bytes(REFERENCE.read_bytes() + b"\n")
    assert key("a", copy) != first
