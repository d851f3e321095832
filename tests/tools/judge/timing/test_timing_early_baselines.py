"""Baselines that are prepared while the program is loaded."""

import threading
from contextlib import ExitStack
from typing import cast

import pytest

from stitch_tools.judge.timing.early_baselines import EarlyBaselines, early_kinds
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.timed_process import RunnerFailedError

_WAIT_S = 20.0


class _Prepared:
    """Prepares by name, and remembers what was begun and what was ended."""

    def __init__(self, *, meet: int = 1, broken: str = "") -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self._meet, self._broken = threading.Barrier(meet), broken

    def __call__(self, stack: ExitStack, kind: str, limit_s: float) -> Runner:
        assert limit_s > 0
        self.begun.append(kind)
        self._meet.wait(_WAIT_S)
        if kind == self._broken:
            raise RunnerFailedError(kind, "it does not run")
        stack.callback(self.ended.append, kind)
        return cast("Runner", kind)


def test_on_a_gpu_those_that_compile_nothing_are_prepared_early() -> None:
    kinds = ("eager", "compile:default", "cudagraph")
    assert early_kinds(kinds, cuda=True, nbytes=1 << 30) == ("eager", "cudagraph")
    assert early_kinds(kinds, cuda=False, nbytes=1 << 30) == ()


def test_none_takes_the_memory_that_a_large_program_needs_first() -> None:
    assert early_kinds(("eager", "cudagraph"), cuda=True, nbytes=16 << 30) == ()


def test_they_are_prepared_side_by_side_and_end_with_the_one_who_took_them() -> None:
    prepare = _Prepared(meet=2)  # each waits until the other has begun
    with ExitStack() as stack:
        with EarlyBaselines(prepare, ("eager", "cudagraph")) as early:
            assert early.take(stack, "cudagraph", _WAIT_S) == cast("Runner", "cudagraph")
            assert early.take(stack, "eager", _WAIT_S) == cast("Runner", "eager")
        assert not prepare.ended
    assert sorted(prepare.ended) == ["cudagraph", "eager"]


def test_one_that_nobody_takes_is_ended() -> None:
    prepare = _Prepared()
    with EarlyBaselines(prepare, ("eager", "cudagraph")), ExitStack():
        pass
    assert sorted(prepare.ended) == ["cudagraph", "eager"]


def test_one_that_was_not_begun_is_prepared_when_it_is_taken() -> None:
    prepare = _Prepared()
    with ExitStack() as stack, EarlyBaselines(prepare, ()) as early:
        assert not prepare.begun
        early.take(stack, "compile:default", _WAIT_S)
    assert prepare.begun == prepare.ended == ["compile:default"]


def test_why_one_cannot_be_prepared_is_told_when_it_is_taken() -> None:
    with (
        ExitStack() as stack,
        EarlyBaselines(_Prepared(broken="eager"), ("eager",)) as early,
        pytest.raises(RunnerFailedError, match="it does not run"),
    ):
        early.take(stack, "eager", _WAIT_S)


def test_one_that_is_not_ready_in_time_is_left_out() -> None:
    prepare = _Prepared(meet=2)
    with ExitStack() as stack, EarlyBaselines(prepare, ("eager",)) as early:
        with pytest.raises(RunnerFailedError, match="not ready within 0 s"):
            early.take(stack, "eager", 0.0)
        prepare(stack, "other", _WAIT_S)  # lets the first one go on, which is then ended
    assert sorted(prepare.ended) == ["eager", "other"]
