"""How tensors on a GPU travel is tried out by real children; what they send and read runs on a CPU, too."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_tools.protocol import memory
from stitch_tools.protocol.messages import decode_reply, encode
from stitch_tools.protocol.messages_session import ProbeReply, ProbeStep
from stitch_tools.run.data_plane import SETTING, PlaneError, started_pair
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession
from stitch_tools.worker.plane_probe import Side, handlers


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plane") / "scratch"


@pytest.fixture(scope="module")
def session(scratch: Path) -> Iterator[TargetSession]:
    with TargetSession(find_interpreter(None, scratch.parent), threads=1, scratch_root=scratch) as session:
        yield session


def without_gpu() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("a GPU is here")


def test_without_a_gpu_tensors_travel_by_the_host_and_the_reason_is_told(
    session: TargetSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_gpu()
    monkeypatch.setenv(SETTING, "device")
    plane = session.plane()
    assert plane.kind == "host"
    assert plane.reason == "start: torch sees no CUDA device here"
    assert session.plane() is plane


def test_the_children_that_try_it_out_are_gone_afterwards(session: TargetSession, scratch: Path) -> None:
    without_gpu()
    with pytest.raises(PlaneError), started_pair(session, "host"):
        pass
    (own,) = scratch.iterdir()
    assert list(own.iterdir()) == []


def test_the_setting_keeps_tensors_off_the_gpus_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, "host")
    # Nothing is started for it: the session has not begun.
    plane = TargetSession(find_interpreter(None, tmp_path)).plane()
    assert (plane.kind, plane.reason) == ("host", f"{SETTING} is host")


def ask(side: Side, step: ProbeStep) -> ProbeReply:
    sent = encode(step)
    reply = handlers(side)[step.op](sent)
    return decode_reply(ProbeReply, reply)


@pytest.mark.parametrize("nbytes", [1, 1000, (3 << 20) + 1])
def test_what_goes_there_comes_back_turned_round_and_nothing_else_passes(nbytes: int) -> None:
    judge, program = Side("cpu"), Side("cpu")
    sent = ask(judge, ProbeStep("send", nbytes=nbytes))
    manifest, inputs = sent.manifest, sent.fds
    ask(program, ProbeStep("take", manifest=manifest, fds=inputs))
    outputs = ask(judge, ProbeStep("poison", manifest=manifest)).fds
    assert ask(judge, ProbeStep("read", manifest=manifest, fds=outputs)).right is False
    ask(program, ProbeStep("give", manifest=manifest, fds=outputs))
    assert ask(judge, ProbeStep("read", manifest=manifest, fds=outputs)).right is True
    memory.write_at(outputs[0], memoryview(bytes([int(judge.master[0])])), 0)
    assert ask(judge, ProbeStep("read", manifest=manifest, fds=outputs)).right is False
    for fd in (*inputs, *outputs):
        os.close(fd)
