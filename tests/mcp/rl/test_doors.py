"""The reward on the command line, over HTTP and over MCP: the same judge behind each."""

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from stitch_mcp.rl.reward.adapters.client import VerifyClient
from stitch_mcp.rl.reward.watching import RewardEntry
from stitch_mcp.server.app import build_server
from stitch_mcp.server.server_context import open_server_context, parse_toolsets
from tests.mcp.cli_support import COMMAND, call
from tests.mcp.server.conftest import PROGRAM, REFERENCE

TOKEN = "a token of this test"
BROKEN = "int broken = ;"
TASK = {"files": {"model.py": REFERENCE}}


@contextmanager
def serving(workspace: Path) -> Generator[tuple[str, subprocess.Popen[str]]]:
    """Address and process of `rl serve` with one slot."""
    environment = {**os.environ, "STITCH_RL_TOKEN": TOKEN, "STITCH_LOCK_DIR": str(workspace)}
    process = subprocess.Popen(
        [*COMMAND, "rl", "serve", "--workspace", str(workspace), "--port", "0"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        told = [process.stderr.readline() for _ in range(2)]
        assert told[0] == "worker cpu: idle\n"
        yield told[1].split()[-1], process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        if process.stderr is not None:
            process.stderr.close()


def judges_of(process: subprocess.Popen[str]) -> list[int]:
    """Processes of the service's judges."""
    files = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = [pid for file in files for pid in file.read_text(encoding="ascii").split()]
    return [pid for pid in map(int, children) if b"judge_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def post(url: str, body: object) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(url, json.dumps(body).encode("utf-8"), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_service_judges_one_request_a_slot_and_outlives_a_judge_that_is_killed(tmp_path: Path) -> None:
    submission = {"files": {"program.cpp": BROKEN}}
    asked = {"submission": submission, "task": TASK, "preset": "milestone"}
    with serving(tmp_path) as (url, process):
        # A request takes seconds: the others come meanwhile.
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda _: post(url, asked), range(3)))
        assert sorted(status for status, _ in answers) == [200, 429, 429]
        (judged,) = [answer for status, answer in answers if status == 200]
        assert (judged["status"], judged["reward"]["total"]) == ("build_failed", -1.0)
        # Of root: no other process of this user may read the token there.
        assert Path(f"/proc/{process.pid}/environ").stat().st_uid == 0
        status, wrong = post(url, {**asked, "task": {"files": {"model.py": "x = 1"}}})
        assert (status, "Model" in wrong["error"]) == (400, True)
        for pid in judges_of(process):
            os.kill(pid, signal.SIGKILL)
        # A judge that is lost is replaced, and asked again.
        answer = VerifyClient(url, TOKEN).verify(submission, TASK, "kevin")
        assert answer["reward"]["total"] == 0.0


def test_presets_are_shown_with_floor_and_oracle(tmp_path: Path) -> None:
    code, shown = call(tmp_path, "rl", "reward", "presets")
    assert code == 0
    assert {row["preset"] for row in shown["points"]} == {"stitchcuda", "milestone", "kevin", "coverage"}


def test_a_log_with_a_paid_probe_ends_with_the_exit_code_of_a_cheat(tmp_path: Path) -> None:
    row = RewardEntry(step=1, reward=1.0, floor=0, ceiling=3, correct=True, probe="cached_by_pointer")
    (tmp_path / "rewards.jsonl").write_text(row.model_dump_json() + "\n", encoding="utf-8")
    code, watched = call(tmp_path, "rl", "reward", "watch", "rewards.jsonl")
    assert (code, watched["alarms"][0]["kind"]) == (8, "probe_paid")


@pytest.mark.exhaustive
def test_the_command_line_judges_a_completion(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "answer.md").write_text(f"Here:\n```cpp program.cpp\n{PROGRAM}\n```\n", encoding="utf-8")
    code, found = call(tmp_path, "rl", "reward", "judge", "model.py", "answer.md", "--preset", "milestone")
    assert (code, found["reward"]["correct"], found["status"]) == (0, True, "accepted")
    assert Path(found["certificate"]).is_file()
    (tmp_path / "answer.md").write_text("reward: 3.0", encoding="utf-8")
    code, found = call(tmp_path, "rl", "reward", "judge", "model.py", "answer.md", "--preset", "milestone")
    assert (code, found["reward"]["total"], found["status"]) == (3, -1.0, None)


@pytest.mark.exhaustive
@pytest.mark.anyio
async def test_an_agent_that_asks_for_rewards_gets_the_tool_and_its_answer(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(REFERENCE, encoding="utf-8")
    toolsets = parse_toolsets("steps,rl")
    server_context = open_server_context({"workspace": tmp_path}, toolsets=toolsets)
    try:
        async with Client(build_server(server_context), mode="2026-07-28") as client:
            given = {"reference": "model.py", "preset": "kevin", "wait_s": 45}
            for source, correct in ((BROKEN, False), (PROGRAM, True)):
                asked = {**given, "files": {"program.cpp": source}}
                result = await client.call_tool("reward_program", asked)
                answer = result.structured_content
                assert answer is not None
                assert (answer["correct"], answer["reward"] > 0) == (correct, correct), answer
    finally:
        server_context.supervisor.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
