"""Judges in processes of their own, each with a warm session, as many as there are slots."""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from statistics import fmean
from typing import Any

from stitch_mcp.config import configure
from stitch_mcp.rl.reward.judging import JudgeOptions, RewardJudge
from stitch_mcp.rl.reward.verification import VerifyAnswer, VerifyRequest, verify
from stitch_tools.errors import StitchError
from stitch_tools.models.base import Fact

_FIRST_GUESS_S = 20.0
_REMEMBERED = 32


class JudgeFailure(Fact):
    """A failure of ours or of the machine, as it crosses from a judge's process."""

    code: str
    """As in `StitchError`."""
    message: str
    hint: str = ""


class JudgeBusyError(StitchError):
    """All slots are taken."""

    code = "busy"

    def __init__(self, retry_after_s: float) -> None:
        super().__init__("all judges are at work", hint=f"ask again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class JudgePool:
    """Judges requests side by side, one a slot, and refuses what is more: nothing waits in a queue.

    Submit from one thread that lives as long as the pool: the processes end with that thread.
    """

    def __init__(
        self, settings: Mapping[str, Any], options: JudgeOptions | None = None, *, slots: int = 1
    ) -> None:
        """Starts no process yet."""
        self.slots = slots
        self._arguments = (dict(settings), options or JudgeOptions())
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        self._at_work = 0
        self._took_s: deque[float] = deque(maxlen=_REMEMBERED)

    @property
    def at_work(self) -> int:
        """Requests that are being judged now."""
        return self._at_work

    @property
    def retry_after_s(self) -> float:
        """When a slot should be free again, by how long the last requests took."""
        return max(1.0, (fmean(self._took_s) if self._took_s else _FIRST_GUESS_S) / self.slots)

    def submit(self, request: VerifyRequest) -> "Future[VerifyAnswer | JudgeFailure]":
        """The answer to come.

        Raises:
            JudgeBusyError: all slots are taken.
        """
        with self._lock:
            if self._at_work >= self.slots:
                raise JudgeBusyError(self.retry_after_s)
            self._at_work += 1
            began = time.monotonic()
            try:
                answer = self._submitted(request)
            except BaseException:  # handed on: a slot that was not used is free
                self._at_work -= 1
                raise
        answer.add_done_callback(lambda _: self._free(began))
        return answer

    def close(self) -> None:
        """End the processes, whatever they do."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        # A judge at work would be waited for.
        for process in list((pool._processes or {}).values()):  # pyright: ignore[reportPrivateUsage] # public from 3.14 on: terminate_workers
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)

    def _submitted(self, request: VerifyRequest) -> "Future[VerifyAnswer | JudgeFailure]":
        for _ in range(2):
            if self._pool is None:
                self._pool = ProcessPoolExecutor(
                    self.slots,
                    # A fork of this process would inherit its threads' locks.
                    mp_context=multiprocessing.get_context("spawn"),
                    initializer=_open_judge,
                    initargs=self._arguments,
                )
            with suppress(BrokenProcessPool):
                return self._pool.submit(_judge, request)
            # A judge's process was killed: the others are replaced with it.
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        raise StitchError("the judges' processes do not start", hint="see the server's output")

    def _free(self, began_s: float) -> None:
        with self._lock:
            self._at_work -= 1
            self._took_s.append(time.monotonic() - began_s)


_own_judge: RewardJudge | None = None
"""Of a process of the pool: the one judge that it keeps open."""


def _open_judge(settings: Mapping[str, Any], options: JudgeOptions) -> None:
    global _own_judge
    from stitch_tools.confine import linux

    parent = os.getppid()
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)
    # Ctrl-C in a terminal reaches the whole group: the server ends its judges itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _own_judge = RewardJudge(configure(dict(settings)), options)
    _own_judge.__enter__()


def _judge(request: VerifyRequest) -> VerifyAnswer | JudgeFailure:
    assert _own_judge is not None
    try:
        return verify(_own_judge, request)
    except StitchError as error:
        return JudgeFailure(code=error.code, message=error.message, hint=error.hint)
