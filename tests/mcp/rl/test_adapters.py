"""Adapters ask the service as their hosts call them, and drive a rollout where a host is installed.

`STITCH_HOST_TRL`, `_VERL`, `_VERIFIERS` and `_OPENENV` name interpreters that have the host.
"""

import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from stitch_mcp.backends.pool import WorkerFailureError
from stitch_mcp.http_app import HttpOptions
from stitch_mcp.listening_socket import listen_at
from stitch_mcp.rl.reward.adapters import verl_reward
from stitch_mcp.rl.reward.adapters.client import VerifyClient, VerifyRefusedError, last_text
from stitch_mcp.rl.reward.adapters.harbor_task import export_harbor
from stitch_mcp.rl.reward.adapters.trl_reward import make_reward
from stitch_mcp.rl.reward.facts import RewardEvidence
from stitch_mcp.rl.reward.judge_workers import JudgeOrder, JudgePool
from stitch_mcp.rl.reward.judging import JudgedSubmission, RewardTask
from stitch_mcp.rl.reward.service import VerifyService, build_service
from stitch_mcp.rl.reward.submissions import Submission
from tests.mcp.rl.evidence import make_check, make_evidence
from tests.mcp.rl.test_service import TOKEN, AnsweringWorker

ROOT = Path(__file__).parents[3]
PATHS = os.pathsep.join(str(ROOT / name) for name in ("", "tools", "planner", "rag_index"))
TASK = {"files": {"model.py": "..."}}
TEXT = "```cpp program.cpp\nint x;\n```"
RIGHT = JudgedSubmission(evidence=make_evidence(2.0, 2.0), task_id="t", program_id="p")
UNJUDGED = JudgedSubmission(evidence=RewardEvidence(check=make_check("unmeasured")), task_id="t")


class Served:
    """The service in a thread, over a pool that answers at once."""

    def __init__(self, root: Path) -> None:
        self.worker = AnsweringWorker(RIGHT)
        self.pool = JudgePool([self.worker, self.worker])
        app = build_service(VerifyService(self.pool, root), HttpOptions(token=TOKEN))
        sockets = listen_at("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/verify"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": sockets})
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.pool.close()

    @contextmanager
    def busy(self) -> Generator[None]:
        """All slots are taken inside the block."""
        self.worker.may_go_on.clear()
        order = JudgeOrder(submission=Submission(text=TEXT), task=RewardTask(reference="model.py"))
        futures = [self.pool.submit(order) for _ in range(2)]
        try:
            yield
        finally:
            self.worker.may_go_on.set()
            for future in futures:
                future.result(20)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("served"))
    yield served
    served.close()


@pytest.fixture
def service(served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("STITCH_RL_URL", served.url)
    monkeypatch.setenv("STITCH_RL_TOKEN", TOKEN)
    served.worker.answer = RIGHT
    served.worker.asked.clear()
    return served


def test_trl_gets_a_reward_a_completion_and_none_where_nothing_was_judged(service: Served) -> None:
    reward = make_reward(preset="kevin", side_by_side=2)
    chat = [{"role": "assistant", "content": TEXT}]
    columns = {"task": [TASK, json.dumps(TASK)], "parent": [None, json.dumps({"program.cpp": "int a;"})]}
    given = {"prompts": ["a", "b"], "completions": [TEXT, chat], "completion_ids": [[1], [2]], **columns}
    assert reward(**given) == pytest.approx([2.3, 2.3])
    assert sorted(row.submission.skill for row in service.worker.asked) == ["generate", "refine"]
    assert {row.submission.text for row in service.worker.asked} == {TEXT}
    service.worker.answer = UNJUDGED
    assert reward(prompts=["a"], completions=[TEXT], task=[TASK]) == [None]


def test_verl_gets_a_score_with_figures(service: Served) -> None:
    extra = {"preset": "milestone", "index": 3}
    found = verl_reward.compute_score(
        data_source="stitch", solution_str=TEXT, ground_truth=json.dumps(TASK), extra_info=extra
    )
    assert found == {"score": 2.0, "correct": True, "valid": True, "hacking": False, "speedup": 2.0}
    service.worker.answer = UNJUDGED
    found = verl_reward.compute_score("stitch", TEXT, TASK, None)
    assert (found["score"], found["valid"]) == (0.0, False)


def test_a_client_waits_for_a_busy_service_and_gives_up_in_time(service: Served) -> None:
    with service.busy(), pytest.raises(VerifyRefusedError, match="429"):
        VerifyClient(give_up_s=0.5).verify({"text": TEXT}, TASK, "kevin")
    service.worker.answer = WorkerFailureError("task", "the reference has no Model")
    with pytest.raises(VerifyRefusedError, match="has no Model"):
        VerifyClient().verify({"text": TEXT}, TASK, "kevin")
    with pytest.raises(VerifyRefusedError, match="401"):
        VerifyClient(token="wrong").verify({"text": TEXT}, TASK, "kevin")


def test_a_client_asks_over_http_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STITCH_RL_URL", raising=False)
    for url in (None, "file:///etc/passwd"):
        with pytest.raises(VerifyRefusedError, match="no reward service"):
            VerifyClient(url)


def test_the_text_of_a_completion_is_that_of_its_last_message() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert last_text([{"role": "user", "content": "x"}, {"role": "assistant", "content": parts}]) == "ab"
    assert (last_text("plain"), last_text([])) == ("plain", "")


def test_a_harbor_task_holds_oracle_and_floor_and_its_verifier_writes_the_services_reward(
    service: Served, tmp_path: Path
) -> None:
    folder, program = tmp_path / "task", tmp_path / "program"
    export_harbor(
        folder,
        instruction="Make it fast.",
        task=TASK,
        oracle={"program.cpp": b"int x;", "parts/a.h": b"int a;"},
        rewards={"floor": 0.0, "oracle": 2.3, "ceiling": 10.3},
        preset="kevin",
    )
    written = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    assert written["metadata"]["reward_oracle"] == 2.3
    # What an agent leaves running in its own container reaches no reward.
    assert written["verifier"]["environment_mode"] == "separate"
    solve = folder / "solution" / "solve.sh"
    text = solve.read_text(encoding="utf-8").replace("/workspace/program", str(program))
    solve.write_text(text, encoding="utf-8")
    subprocess.run([str(solve)], check=True)
    environment = {
        **os.environ,
        "STITCH_PROGRAM": str(program),
        "STITCH_REWARD": str(tmp_path / "reward.json"),
    }
    command = [sys.executable, str(folder / "tests" / "harbor_verify.py")]
    subprocess.run(command, env=environment, check=True)
    reward = json.loads((tmp_path / "reward.json").read_text(encoding="utf-8"))
    assert reward == {"reward": pytest.approx(2.3), "correct": 1.0, "speedup": 2.0}
    assert service.worker.asked[0].submission.files == {"program.cpp": "int x;", "parts/a.h": "int a;"}
    (tmp_path / "reward.json").unlink()
    service.worker.answer = UNJUDGED
    assert subprocess.run(command, env=environment, check=False).returncode == 1
    assert not (tmp_path / "reward.json").exists()


@pytest.mark.parametrize("host", ["trl", "verl", "verifiers", "openenv"])
def test_an_adapter_drives_a_rollout_in_its_hosts_own_environment(service: Served, host: str) -> None:
    python = os.environ.get(f"STITCH_HOST_{host.upper()}")
    if python is None:
        pytest.skip(f"not measured: STITCH_HOST_{host.upper()} names no interpreter with {host}")
    row = {"prompt": "make it fast", "completion": TEXT, "task": TASK, "preset": "kevin"}
    script = Path(__file__).parent / "hosts" / f"{host}_host.py"
    done = subprocess.run(
        [python, str(script)],
        input=json.dumps(row),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": PATHS},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["reward"] == pytest.approx(2.3)
    assert service.worker.asked[-1].submission.text == TEXT
