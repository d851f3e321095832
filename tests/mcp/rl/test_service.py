"""The service answers with the judge's reward, refuses what is too much, and asks for a token."""

import json
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from stitch_mcp.backends.pool import Note, WorkerFailureError, WorkerHungError, WorkerLostError
from stitch_mcp.http_app import HttpOptions
from stitch_mcp.rl.reward.judge_workers import JudgeOrder, JudgePool
from stitch_mcp.rl.reward.judging import JudgedSubmission, RewardTask
from stitch_mcp.rl.reward.service import MAX_BODY_BYTES, VerifyService, build_service
from stitch_tools.errors import UsageError
from tests.mcp.rl.evidence import make_evidence

TOKEN = "a token of this test"
ASKED = {
    "submission": {"text": "```cpp\nint x;\n```"},
    "task": {"files": {"model.py": "..."}},
    "preset": "kevin",
}


class AnsweringWorker:
    """Answers with what it was given, once it may go on."""

    name = "fake"

    def __init__(self, answer: JudgedSubmission | Exception) -> None:
        self.answer = answer
        self.asked: list[JudgeOrder] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def warm_up(self) -> None:
        pass

    def run(self, order: JudgeOrder, note: Note) -> JudgedSubmission:
        self.asked.append(order)
        note("judges")
        assert self.may_go_on.wait(20)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.may_go_on.set()


JUDGED = JudgedSubmission(evidence=make_evidence(2.0, 2.0), task_id="t", program_id="p", certificate_id="c")


def client(pool: JudgePool, root: Path, *, token: str | None = TOKEN, host: str = "localhost") -> TestClient:
    app = build_service(VerifyService(pool, root), HttpOptions(token=TOKEN))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return TestClient(app, base_url=f"http://{host}", headers=headers)


@pytest.fixture
def worker() -> AnsweringWorker:
    return AnsweringWorker(JUDGED)


@pytest.fixture
def pool(worker: AnsweringWorker) -> Generator[JudgePool]:
    with JudgePool([worker]) as pool:
        yield pool


def test_a_submission_is_answered_with_reward_parts_and_certificate(
    pool: JudgePool, worker: AnsweringWorker, tmp_path: Path
) -> None:
    answer = client(pool, tmp_path).post("/verify", json=ASKED)
    assert answer.status_code == 200
    body = answer.json()
    assert body["reward"]["total"] == pytest.approx(2.3)
    assert [row["name"] for row in body["reward"]["parts"]] == ["correct", "speedup"]
    assert (body["certificate_id"], body["program_id"], body["status"]) == ("c", "p", "accepted")
    assert asked_task(worker).files == {"model.py": "..."}


def asked_task(worker: AnsweringWorker) -> RewardTask:
    task = worker.asked[0].task
    assert isinstance(task, RewardTask)
    return task


def test_a_busy_service_says_when_to_ask_again(
    pool: JudgePool, worker: AnsweringWorker, tmp_path: Path
) -> None:
    worker.may_go_on.clear()
    first = pool.submit(JudgeOrder.model_validate({"submission": {}, "task": {"reference": "a.py"}}))
    answer = client(pool, tmp_path).post("/verify", json=ASKED)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "20")
    worker.may_go_on.set()
    assert first.result(20).answer == JUDGED
    assert client(pool, tmp_path).post("/verify", json=ASKED).status_code == 200


@pytest.mark.parametrize(
    ("code", "status"), [("task", 400), ("usage", 400), ("environment", 503), ("locked", 503)]
)
def test_a_fault_of_the_task_is_the_callers_and_one_of_the_machine_is_not_a_reward(
    pool: JudgePool, worker: AnsweringWorker, tmp_path: Path, code: str, status: int
) -> None:
    worker.answer = WorkerFailureError(code, "it cannot", "do this")
    answer = client(pool, tmp_path).post("/verify", json=ASKED)
    assert (answer.status_code, answer.json()) == (status, {"error": "it cannot", "hint": "do this"})
    assert ("Retry-After" in answer.headers) == (status == 503)


def test_a_submission_that_hangs_the_judge_itself_gets_the_floor_and_the_slot_is_free_again(
    pool: JudgePool, worker: AnsweringWorker, tmp_path: Path
) -> None:
    worker.answer = WorkerHungError("no answer")
    answer = client(pool, tmp_path).post("/verify", json={**ASKED, "preset": "milestone"}).json()
    assert (answer["reward"]["total"], answer["reward"]["valid"], answer["status"]) == (-1, True, "timed_out")
    assert len(worker.asked) == 2
    assert client(pool, tmp_path).get("/health").json()["at_work"] == 0


def test_a_judge_that_is_lost_is_no_reward(pool: JudgePool, worker: AnsweringWorker, tmp_path: Path) -> None:
    worker.answer = WorkerLostError("it was killed")
    answer = client(pool, tmp_path).post("/verify", json=ASKED)
    assert (answer.status_code, answer.json()["error"]) == (503, "it was killed")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"content": b"x" * (MAX_BODY_BYTES + 1)}, 413),
        ({"content": iter([b"x" * MAX_BODY_BYTES, b"x"])}, 413),
        ({"content": b'{"submission": {'}, 422),
        ({"content": b"[]"}, 422),
        ({"json": {**ASKED, "reward": 3.0}}, 422),
        ({"json": {**ASKED, "preset": "generous"}}, 422),
        ({"json": {**ASKED, "task": {"reference": "../secret.py"}}}, 400),
        ({"json": {**ASKED, "task": {"reference": "/etc/passwd"}}}, 400),
        ({"json": {**ASKED, "task": {"reference": "model\0.py"}}}, 400),
        ({"json": {**ASKED, "task": {}}}, 400),
        ({"json": {**ASKED, "task": {"files": {"../m.py": ""}}}}, 400),
        ({"json": {**ASKED, "task": {"files": {"m.py": ""}, "reference": "/home/model.py"}}}, 400),
        ({"json": {**ASKED, "task": {"files": {"m.py": ""}, "reference": "a/../../model.py:Model"}}}, 400),
        ({"json": {**ASKED, "task": {"files": {"m.py": ""}, "reference": "~/model.py"}}}, 400),
        ({"json": {**ASKED, "task": {"files": {"m.py": "", "task.toml": "search_path = ['/home']"}}}}, 400),
        ({"json": {**ASKED, "task": {"files": {"m.py": "", "m.task.toml": "files = ['../key']"}}}}, 400),
        ({"json": {**ASKED, "task": {"files": {"task.toml": "reference = '/home/model.py'"}}}}, 400),
        ({"json": {**ASKED, "task": {"files": {"m.py": ""}, "allow_relaxed": True}}}, 400),
    ],
)
def test_what_cannot_be_judged_is_refused_before_a_judge_is_asked(
    pool: JudgePool, worker: AnsweringWorker, tmp_path: Path, sent: dict[str, object], status: int
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client(pool, tmp_path).request("POST", "/verify", headers=headers, **sent)  # pyright: ignore[reportArgumentType] # one of content and json
    assert (answer.status_code, worker.asked) == (status, [])


@pytest.mark.parametrize("reference", ["folder/model.py", "model.py:Model", "~/model.py"])
def test_a_reference_of_the_workspace_does_not_depend_on_a_judges_working_directory(
    pool: JudgePool, worker: AnsweringWorker, tmp_path: Path, reference: str
) -> None:
    answer = client(pool, tmp_path).post("/verify", json={**ASKED, "task": {"reference": reference}})
    assert answer.status_code == 200
    assert asked_task(worker).reference == f"{tmp_path.resolve()}/{reference}"


def test_a_page_in_a_browser_reaches_nothing(
    pool: JudgePool, worker: AnsweringWorker, tmp_path: Path
) -> None:
    plain = {"Content-Type": "text/plain"}
    assert client(pool, tmp_path).post("/verify", content=json.dumps(ASKED), headers=plain).status_code == 415
    assert client(pool, tmp_path, token=None).post("/verify", json=ASKED).status_code == 401
    assert client(pool, tmp_path, token="another token").get("/presets").status_code == 401
    assert client(pool, tmp_path, host="rebound.example").get("/health").status_code == 400
    assert worker.asked == []


def test_presets_and_free_slots_are_shown(pool: JudgePool, tmp_path: Path) -> None:
    served = client(pool, tmp_path)
    health = served.get("/health").json()
    assert (health["slots"], health["at_work"], health["workers"][0]["state"]) == (1, 0, "idle")
    points = served.get("/presets").json()["points"]
    assert {row["preset"] for row in points} == {"stitchcuda", "milestone", "kevin", "coverage"}


def test_a_service_without_a_token_does_not_start(pool: JudgePool, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a token"):
        build_service(VerifyService(pool, tmp_path), HttpOptions(token="short"))
