"""The timed loop: as many calls as asked for, slots in turn, statuses passed on. C and Python alike."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stitch_tools.compile.host_build import build_runner
from stitch_tools.compile.toolchain import find_cpp_compiler
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.timing.timed_process import Pipes, RunnerFailedError, TimedProcess
from stitch_tools.protocol.ring_messages import COLLECT, RENEW, request
from stitch_tools.worker.timed.loop import NativeRunner, Service, serve_python

SLOTS = 3
Serve = Callable[[int, int], None]


class Loop:
    """One loop in a thread, and the contestant that drives it."""

    def __init__(self, serve: Serve) -> None:
        pipes, far = Pipes.open()
        self.contestant = TimedProcess("program", pipes, SLOTS, timeout_s=20.0)
        self.thread = threading.Thread(target=self._run, args=(serve, *far))
        self.thread.start()

    def _run(self, serve: Serve, request_fd: int, reply_fd: int) -> None:
        serve(request_fd, reply_fd)
        os.close(request_fd)
        os.close(reply_fd)

    def end(self) -> None:
        self.contestant.stop()
        self.thread.join(20.0)


def built_runner(cache_dir: Path) -> Path:
    try:
        find_cpp_compiler()
    except EnvironmentMissingError as error:
        pytest.skip(error.message)
    return build_runner(cache_dir)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> NativeRunner:
    return NativeRunner(str(built_runner(tmp_path_factory.mktemp("cache"))), cuda=False)


def no_request(word: int, slot: int) -> None:
    raise AssertionError(f"nobody asked for anything: {word:#x} at {slot}")


class Calls:
    """A stand-in for stitch_forward that notes which slot it was given."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.slots: list[int] = []
        self.ring = (ctypes.c_uint64 * (SLOTS * 9))()
        self._fail_at = fail_at
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
        self.forward = kind(self._call)

    def _call(self, handle: int, args: int) -> int:
        self.slots.append((args - ctypes.addressof(self.ring)) // 72)
        return 2 if len(self.slots) == self._fail_at else 0

    def serve(self, runner: NativeRunner, service: Service = no_request) -> Serve:
        address = ctypes.cast(self.forward, ctypes.c_void_p).value
        assert address is not None
        return lambda request_fd, reply_fd: runner.serve(
            forward=address,
            handle=1,
            ring=ctypes.addressof(self.ring),
            slots=SLOTS,
            request_fd=request_fd,
            reply_fd=reply_fd,
            service=service,
        )


@pytest.fixture(params=["c", "python"])
def loop(request: pytest.FixtureRequest, runner: NativeRunner) -> Iterator[tuple[Loop, list[int]]]:
    if request.param == "c":
        calls = Calls()
        yield Loop(calls.serve(runner)), calls.slots
    else:
        seen: list[int] = []

        def in_python(request_fd: int, reply_fd: int) -> None:
            serve_python(
                seen.append, slots=SLOTS, request_fd=request_fd, reply_fd=reply_fd, service=no_request
            )

        yield Loop(in_python), seen


def test_a_batch_makes_as_many_calls_as_it_says_over_the_slots_in_turn(loop: tuple[Loop, list[int]]) -> None:
    running, seen = loop
    for calls in (2, 0, 4, 1):
        assert running.contestant.run_calls(calls) > 0.0
    assert running.contestant.slot == 7 % SLOTS
    running.end()
    assert seen == [0, 1, 2, 0, 1, 2, 0]
    assert [calls for calls, _ in running.contestant.history] == [2, 0, 4, 1]


def test_the_loop_ends_when_the_controller_is_gone(loop: tuple[Loop, list[int]]) -> None:
    running, _ = loop
    running.contestant.run_calls(1)
    running.contestant.pipes.close()
    running.thread.join(20.0)
    assert not running.thread.is_alive()


def test_a_failing_call_ends_its_batch_with_the_programs_own_status(runner: NativeRunner) -> None:
    calls = Calls(fail_at=5)
    running = Loop(calls.serve(runner))
    running.contestant.run_calls(3)
    with pytest.raises(RunnerFailedError, match="status 2"):
        running.contestant.run_calls(10)
    running.end()
    assert len(calls.slots) == 5


@pytest.mark.parametrize("form", ["c", "python"])
def test_a_request_between_gos_is_served_with_the_next_slot_and_is_no_timed_go(
    runner: NativeRunner, form: str
) -> None:
    served: list[tuple[int, int]] = []

    def service(word: int, slot: int) -> None:
        served.append((word, slot))

    calls = Calls()

    def in_python(request_fd: int, reply_fd: int) -> None:
        serve_python(
            calls.slots.append, slots=SLOTS, request_fd=request_fd, reply_fd=reply_fd, service=service
        )

    running = Loop(calls.serve(runner, service) if form == "c" else in_python)
    running.contestant.run_calls(2)
    running.contestant.ask(request(RENEW, 5))
    running.contestant.run_calls(2)
    running.contestant.ask(request(COLLECT, 1))
    running.end()
    assert served == [(request(RENEW, 5), 2), (request(COLLECT, 1), 1)]
    assert calls.slots == [0, 1, 2, 0]
    assert [calls for calls, _ in running.contestant.history] == [2, 2]


def test_a_request_that_fails_in_c_is_told_and_raised_when_the_loop_has_ended(runner: NativeRunner) -> None:
    raised: list[str] = []

    def service(word: int, slot: int) -> None:
        raise ValueError(f"{word:#x} at {slot}")

    serve = Calls().serve(runner, service)

    def noting(request_fd: int, reply_fd: int) -> None:
        try:
            serve(request_fd, reply_fd)
        except ValueError as error:
            raised.append(str(error))

    running = Loop(noting)
    with pytest.raises(RunnerFailedError, match="asked for between calls"):
        running.contestant.ask(request(RENEW, 5))
    running.end()
    assert raised == [f"{request(RENEW, 5):#x} at 0"]


def test_a_loop_that_dies_is_a_failure_and_not_a_time() -> None:
    pipes, far = Pipes.open()
    contestant = TimedProcess("program", pipes, SLOTS)
    for fd in far:
        os.close(fd)
    with pytest.raises(RunnerFailedError, match="ended"):
        contestant.run_calls(1)
    contestant.stop()


def test_a_loop_that_does_not_answer_is_given_up() -> None:
    pipes, far = Pipes.open()
    contestant = TimedProcess("program", pipes, SLOTS, timeout_s=0.05)
    with pytest.raises(RunnerFailedError, match="no answer"):
        contestant.run_calls(1)
    contestant.stop()
    for fd in far:
        os.close(fd)


def test_the_runner_is_built_once_and_then_found(tmp_path: Path) -> None:
    first = built_runner(tmp_path)
    stamp = first.stat().st_mtime_ns
    assert build_runner(tmp_path) == first
    assert first.stat().st_mtime_ns == stamp
    assert sorted(path.name for path in first.parent.iterdir()) == ["librunner.so"]
