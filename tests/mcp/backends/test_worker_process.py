"""A worker process: its lines, its limit, and what ends it."""

import sys
from pathlib import Path

import pytest

from stitch_mcp.backends.pool import WorkerFailureError, WorkerHungError, WorkerLostError
from stitch_mcp.backends.pool_status import WAITS_FOR_DEVICE
from stitch_mcp.backends.worker_process import WorkerProcess
from stitch_tools.models.base import Fact

SCRIPT = """
import json, sys, time
head = sys.stdin.readline().strip()
def say(message):
    print(json.dumps(message), flush=True)
for line in sys.stdin:
    order = json.loads(line).get("text", "start")
    for word in order.split(","):
        if word.startswith("sleep"):
            time.sleep(float(word[5:]))
        elif word == "end":
            sys.exit(0)
        elif word == "fail":
            say({"failure": {"code": "task", "message": "no Model", "hint": "write one"}})
        elif word == "list":
            say([1])
        else:
            say({"note": word})
    say({"answer": {"text": f"{head} {order}"}})
"""


class Text(Fact):
    """An order, and its answer."""

    text: str


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def worker(script: Path, limit_s: float = 20.0) -> WorkerProcess[Text]:
    command = (sys.executable, str(script))
    return WorkerProcess(command, b"head", Text.from_json_bytes, name="cpu", limit_s=limit_s)


def asked(process: WorkerProcess[Text], *orders: str) -> tuple[list[str], list[str]]:
    notes: list[str] = []
    try:
        answers = [process.run(Text(text=order), notes.append).text for order in orders]
    finally:
        process.close()
    return answers, notes


def test_a_process_answers_order_after_order_and_says_what_it_does(script: Path) -> None:
    process = worker(script)
    process.warm_up()
    assert asked(process, "builds", "checks,times") == (
        ["head builds", "head checks,times"],
        ["builds", "checks", "times"],
    )


def test_a_wait_for_the_device_does_not_count_as_the_orders_time(script: Path) -> None:
    order = f"sleep0.1,{WAITS_FOR_DEVICE},sleep2.5,times,sleep0.1"
    assert asked(worker(script, limit_s=2.0), order)[1] == [WAITS_FOR_DEVICE, "times"]


def test_all_other_time_counts_whatever_is_noted_meanwhile(script: Path) -> None:
    with pytest.raises(WorkerHungError, match="no answer within 1 s"):
        asked(worker(script, limit_s=1.0), "builds,sleep0.7,checks,sleep0.7,times")


def test_what_it_tells_instead_of_an_answer_is_raised(script: Path) -> None:
    with pytest.raises(WorkerFailureError, match="no Model") as caught:
        asked(worker(script), "fail")
    assert (caught.value.code, caught.value.hint) == ("task", "write one")


@pytest.mark.parametrize("order", ["end", "list"])
def test_a_process_that_ends_or_writes_no_message_is_lost(script: Path, order: str) -> None:
    with pytest.raises(WorkerLostError):
        asked(worker(script), order)
