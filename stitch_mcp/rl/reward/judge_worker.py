"""The process of one judge: an order a line on stdin, answers on stdout, until stdin ends.

Started as `python -m stitch_mcp.rl.reward.judge_worker`; `backends.worker_process` describes the lines.
Answers leave through a descriptor of their own: whatever else writes to stdout goes to stderr.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable

from stitch_mcp.backends.pool_status import WAITS_FOR_DEVICE, WAITS_TO_BUILD
from stitch_mcp.config import configure
from stitch_mcp.jobs.slots import PLACE_WAIT
from stitch_mcp.rl.reward.judge_workers import JudgeHead, JudgeOrder
from stitch_mcp.rl.reward.judging import RewardJudge
from stitch_mcp.workbench import target_name
from stitch_tools.errors import StitchError
from stitch_tools.machine.device_lock import DEVICE_WAIT
from stitch_tools.models.task import Task

_LONGEST_NOTE = 80
_GRACE_S = 5.0


def main() -> None:
    """Judge what stdin names."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, object]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    orders = _orders()
    head = JudgeHead.from_json_bytes(orders.get())
    judge: RewardJudge | None = None
    while line := orders.get():
        try:
            if judge is None:
                judge = _opened(head, lambda doing: say({"note": doing}))
            say({"answer": _answer(judge, line)})
        except StitchError as error:
            say({"failure": {"code": error.code, "message": error.message, "hint": error.hint}})
    if judge is not None:
        judge.__exit__(None, None, None)


def _orders() -> "queue.SimpleQueue[bytes]":
    """The lines of stdin, then b"". Whoever started us has then ended, and the process ends soon after."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            lines.put(line)
        lines.put(b"")
        time.sleep(_GRACE_S)
        # Nobody reads the answer that is still worked at. What is below this process ends with it.
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _opened(head: JudgeHead, note: Callable[[str], None]) -> RewardJudge:
    config = configure({**head.config, "workspace": head.workspace})  # pyright: ignore[reportArgumentType] # `configure` refuses what is no setting
    judge = RewardJudge(config, head.options, emit=lambda sentence: note(_doing(sentence)))
    judge.__enter__()
    return judge


def _answer(judge: RewardJudge, line: bytes) -> object:
    if line.strip() == b"{}":
        return {}
    order = JudgeOrder.from_json_bytes(line)
    task = order.task
    if isinstance(task, Task):
        # Whoever asks may have no such device: only here it is known which one it is.
        task = task.model_copy(update={"target": target_name(judge.config)})
    return judge.judge(order.submission, task).model_dump(mode="json")


def _doing(sentence: str) -> str:
    """What the judge does, by its progress sentence."""
    if sentence.startswith(DEVICE_WAIT):
        return WAITS_FOR_DEVICE
    return WAITS_TO_BUILD if sentence.startswith(PLACE_WAIT) else sentence[:_LONGEST_NOTE]


if __name__ == "__main__":
    main()
