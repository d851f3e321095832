"""Prepare eager baselines on a GPU while the program is loaded: each one waits for its own process."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from stitch_tools.judge.timing.baseline_runners import COMPILE_LIMIT_S
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.timed_process import RunnerFailedError

Prepare = Callable[[ExitStack, str, float], Runner]
"""`start_baseline` of one timing: what ends the baseline, its kind, and its time limit in seconds."""

_EARLY = ("eager", "cudagraph")
# Larger ones wait: the program is the first to have memory, and is timed beside fewer if need be.
_MOST_BYTES = 2 << 30


def early_kinds(kinds: Iterable[str], *, cuda: bool, nbytes: int) -> tuple[str, ...]:
    """The kinds that are prepared beside the program.

    On a GPU a second or two go by until a process has its context and its libraries. What compiles would take
    the cores that the program needs, and so would any baseline on a CPU.

    Args:
        kinds: of all baselines.
        cuda: whether they run on a GPU.
        nbytes: of the ring and the weights that each of them holds.
    """
    return tuple(kind for kind in kinds if cuda and nbytes <= _MOST_BYTES and kind in _EARLY)


class EarlyBaselines:
    """Baselines in preparation, each in a thread. Use as a context manager: it ends what was not taken."""

    def __init__(self, prepare: Prepare, kinds: Iterable[str]) -> None:
        """Begin to prepare `kinds`."""
        self._prepare = prepare
        self._pool = ThreadPoolExecutor(len(_EARLY), thread_name_prefix="baseline")
        self._begun = {kind: self._pool.submit(self._start, kind) for kind in kinds}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for future in self._begun.values():
            _end(future)
        self._begun.clear()
        self._pool.shutdown()

    def take(self, stack: ExitStack, kind: str, limit_s: float) -> Runner:
        """The baseline, ready; it ends with `stack`. One that was not begun is prepared now.

        Raises:
            RunnerFailedError: it cannot be prepared, or is not ready within `limit_s` seconds.
        """
        future = self._begun.get(kind)
        if future is None:
            return self._prepare(stack, kind, limit_s)
        try:
            runner, own = future.result(limit_s)
        except TimeoutError as error:
            raise RunnerFailedError(kind, f"not ready within {limit_s:.0f} s") from error
        del self._begun[kind]
        stack.push(own)
        return runner

    def _start(self, kind: str) -> tuple[Runner, ExitStack]:
        with ExitStack() as own:
            return self._prepare(own, kind, COMPILE_LIMIT_S), own.pop_all()


def _end(future: "Future[tuple[Runner, ExitStack]]") -> None:
    # Why it could not be prepared matters to nobody any more.
    with suppress(Exception):
        future.result()[1].close()
