"""Whatever a worker sends is named, takes no more memory than it has, and leaves the next one clean."""

import contextlib
import json
import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_tools.judge.check import check_program
from stitch_tools.judge.timing.timed_process import Pipes, RunnerFailedError, TimedProcess
from stitch_tools.judge.trial import Trial
from stitch_tools.models.verdict import Check
from stitch_tools.protocol.messages import OperationFailedError, decode_reply, encode
from stitch_tools.protocol.messages_candidate import StepReply, TraceReport
from stitch_tools.protocol.wire import (
    MAX_JSON_BYTES,
    Channel,
    ChannelClosedError,
    ChannelTimeoutError,
    Frame,
    ProtocolError,
)
from stitch_tools.run.candidate_worker import read_answer
from stitch_tools.run.child_outcome import ChildDied, ChildTimeout
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import make_task, model_new

HANDLERS = Path(__file__).with_name("attackers") / "liar.py"
HEADER = struct.Struct(">4sI")
NAMED = (ChannelClosedError, ChannelTimeoutError, ProtocolError)


def receive(data: bytes, fds: tuple[int, ...] = (), *, close: bool = True) -> Frame:
    """What the controller's end makes of these bytes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        theirs.setblocking(False)
        if fds:
            sent = socket.send_fds(theirs, [data], list(fds))
            data = data[sent:]
        with contextlib.suppress(BlockingIOError):
            theirs.sendall(data)
        if close:
            theirs.shutdown(socket.SHUT_WR)
        # What is closed has an end that nobody waits for.
        return Channel(ours).receive(timeout_s=10.0 if close else 0.05)


def frame(text: bytes) -> bytes:
    return HEADER.pack(b"STW1", len(text)) + text


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (a path object would hold a descriptor itself)


@given(data=st.binary(max_size=200))
def test_garbage_is_never_a_frame(data: bytes) -> None:
    with pytest.raises(NAMED):
        receive(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(message=st.dictionaries(st.text(), JSON, max_size=5))
def test_a_frame_comes_back_as_it_was_sent(message: dict[str, object]) -> None:
    text = json.dumps(message).encode()
    assert receive(frame(text)).message == json.loads(text)


@given(text=st.binary(max_size=100), cut=st.integers(0, 100), size=st.integers(0, 2**32 - 1))
def test_changed_lengths_and_cut_frames_are_named_or_frames(text: bytes, cut: int, size: int) -> None:
    for data in (frame(b'{"a": "' + text + b'"}')[:cut], HEADER.pack(b"STW1", size) + text):
        try:
            got = receive(data)
        except NAMED:
            continue
        assert isinstance(got.message, dict)


NO_OBJECTS = {
    "nothing": b"",
    "list": b"[]",
    "null": b"null",
    "number": b"1",
    "cut": b'{"ok": ',
    "word": b'{"ok": tru}',
    "no text": b"\xff\xfe{}",
    "digits": b'{"seq": ' + b"9" * 5000 + b"}",
    "not a number": b'{"wall_s": NaN}',
    "infinite": b'{"wall_s": -Infinity}',
    "larger than any number": b'{"wall_s": 1e999}',
    "a little too deep": b'{"status": ' + b"[" * 101 + b"]" * 101 + b"}",
    "deep list": b"[" * 500_000,
    "deep object": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
}


@pytest.mark.parametrize("name", NO_OBJECTS)
def test_what_is_no_object_is_a_protocol_fault(name: str, tmp_path: Path) -> None:
    file = tmp_path / "frame"
    file.write_bytes(frame(NO_OBJECTS[name]))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sender = os.fork()
    if not sender:  # more than a socket's buffer holds
        with contextlib.suppress(OSError):
            theirs.sendall(file.read_bytes())
        os._exit(0)
    with ours, theirs, pytest.raises(ProtocolError):
        Channel(ours).receive(timeout_s=10.0)
    os.waitpid(sender, 0)


def test_half_a_character_is_replaced_since_no_report_could_hold_it() -> None:
    got = receive(frame(rb'{"a\ud800": ["\udfff", "\ud83d\ude00", "\\ud800"]}'))
    assert got.message == {"a?": ["?", "\U0001f600", "\\ud800"]}


@pytest.mark.parametrize("size", [MAX_JSON_BYTES, MAX_JSON_BYTES + 1])
def test_memory_is_taken_for_what_was_sent_and_not_for_what_was_announced(size: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        with pytest.raises(NAMED):
            receive(HEADER.pack(b"STW1", size) + b"{}", close=False)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


@pytest.mark.parametrize("data", [b"S", HEADER.pack(b"STW1", 2), b"XXXXXXXXXXXXXX", frame(b"[]")])
@pytest.mark.parametrize("count", [1, 16, 60])
def test_descriptors_that_come_with_no_frame_are_closed(data: bytes, count: int) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    before = open_descriptors()
    with pytest.raises(NAMED):
        receive(data, (null,) * count)
    assert open_descriptors() == before
    os.close(null)


HONEST: dict[str, object] = encode(StepReply()).message["value"]


@given(message=st.dictionaries(st.sampled_from(sorted(HONEST)) | st.text(), JSON, max_size=5))
def test_a_reply_of_another_shape_is_refused_by_name(message: dict[str, object]) -> None:
    with contextlib.suppress(ProtocolError, OperationFailedError):
        answer = decode_reply(StepReply, Frame({"ok": True, "value": {**HONEST, **message}}))
        assert all(isinstance(text, str) for text in (answer.status, answer.step, *answer.held))


@given(text=st.text(max_size=20), count=st.integers(0, 200))
def test_any_reply_is_read_as_a_claim_of_bounded_size(text: str, count: int) -> None:
    long, names = text * 1000, (text * 20,) * count
    answer = read_answer(StepReply(long, long, long, held=names, changed=names, unspoiled=long))
    texts = (answer.status, answer.step, answer.message, *answer.held, *answer.changed)
    assert all(len(text) <= 8000 for text in texts)
    assert max(len(answer.held), len(answer.changed)) <= 50


TRACED: dict[str, object] = encode(TraceReport((), 0)).message["value"]


@given(message=st.dictionaries(st.sampled_from(sorted(TRACED)), JSON))
def test_what_a_watched_worker_says_is_a_report_or_refused(message: dict[str, object]) -> None:
    with contextlib.suppress(ProtocolError):
        report = decode_reply(TraceReport, Frame({"ok": True, "value": {**TRACED, **message}}))
        assert isinstance(report, TraceReport)


@given(data=st.binary(max_size=40) | st.just(bytes(8)), late=st.booleans())
def test_bytes_of_any_kind_on_the_clock_s_pipe_are_a_time_or_the_contestant_s_failure(
    data: bytes, late: bool
) -> None:
    pipes, (question, done) = Pipes.open()
    contestant = TimedProcess("program", pipes, slots=3, timeout_s=30.0)

    def answer() -> None:
        if late:
            os.read(question, 8)
        os.write(done, data)
        os.close(question)
        os.close(done)  # the process has ended

    answering = threading.Thread(target=answer)
    answering.start()
    if not late:
        answering.join()
    seconds = None
    with contextlib.suppress(RunnerFailedError):
        seconds = contestant.run_calls(2)
    answering.join()
    pipes.close()
    assert (seconds is not None) is (late and data[:8] == bytes(8) and len(data) >= 8)


@given(pieces=st.lists(st.integers(1, 7), min_size=1, max_size=20))
@settings(max_examples=30)
def test_a_frame_in_pieces_is_a_frame(pieces: list[int]) -> None:
    data = frame(b'{"ok": true, "seq": 1}')
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        for size in (*pieces, len(data)):
            theirs.sendall(data[:size])
            data = data[size:]
        assert Channel(ours).receive(timeout_s=10.0).message == {"ok": True, "seq": 1}


@pytest.fixture(scope="module")
def session(one_thread: TargetSession) -> TargetSession:
    return one_thread


LIES = {
    "garbage": "protocol",
    "truncated": "timed_out",
    "huge_lengths": "timed_out",
    "too_huge_lengths": "protocol",
    "wrong_json": "protocol",
    "deep_json": "protocol",
    "a_list": "protocol",
    "wrong_sequence": "protocol",
    "no_sequence": "protocol",
    "no_verdict": "protocol",
    "verdict_of_another_type": "protocol",
    "descriptors": "protocol",
    "too_many_descriptors": "protocol",
    "descriptors_and_silence": "timed_out",
    "drop_by_drop": "timed_out",
    "closed": "closed_descriptors",
    "twice": "protocol",
}
"""What a child sends instead of an answer, and how the controller calls it."""


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_is_named_and_costs_nothing(session: TargetSession, lie: str) -> None:
    kind = LIES[lie]
    before = open_descriptors()
    with session.spawn("worker", serve_file=HANDLERS) as child:
        if lie == "twice":
            child.request({"op": lie}, timeout_s=30)
        with pytest.raises(ChildDied) as died:
            child.request({"op": lie}, timeout_s=1.0 if kind == "timed_out" else 30.0)
        assert died.value.outcome.kind == kind
        assert isinstance(died.value, ChildTimeout) is (kind == "timed_out")
    assert open_descriptors() == before
    with session.spawn("worker", serve_file=HANDLERS) as clean:
        assert clean.request({"op": "truth"}).message["ok"] is True


@pytest.mark.slow
@given(data=st.binary(min_size=1, max_size=64), framed=st.booleans())
@settings(max_examples=25, deadline=None)
def test_bytes_of_any_kind_from_a_real_child_end_it(
    session: TargetSession, data: bytes, framed: bool
) -> None:
    before = open_descriptors()
    sent = frame(data) if framed else data
    with session.spawn("worker", serve_file=HANDLERS) as child, pytest.raises(ChildDied) as died:
        child.request({"op": "send", "hex": sent.hex()}, timeout_s=0.5)
    assert died.value.outcome.kind in ("protocol", "timed_out", "closed_descriptors")
    assert open_descriptors() == before


REFERENCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2
def get_inputs():
    return [torch.randn(8, 8)]
def get_init_inputs():
    return []
"""
CLAIMING = """
import gc, json, os, socket, stat, struct, time, torch

FIELDS, BESIDE = json.loads({fields!r})

def line():
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                return socket.socket(fileno=os.dup(fd))
        except OSError:
            pass

class ModelNew(torch.nn.Module):
    def forward(self, x):
        asked = [d["seq"] for d in gc.get_objects() if type(d) is dict and "seq" in d and "op" in d]
        text = json.dumps({{"ok": True, "seq": max(asked), "value": FIELDS, **BESIDE}}).encode()
        channel = line()
        channel.setblocking(True)
        channel.sendall(struct.pack(">4sI", b"STW1", len(text)) + text)
        time.sleep(1)
"""
CLAIMS: dict[str, tuple[dict[str, object], str]] = {
    "status": ({"status": ["ok"], "step": {"a": 1}, "message": 3}, "crashed"),
    "nothing": ({}, "crashed"),
    "error without fields": ({"ok": False}, "crashed"),
    "error of another type": ({"ok": False, "error": "none"}, "crashed"),
    "held": ({**HONEST, "held": [{"a": 1}, None, "x" * 10_000]}, "crashed"),
    "half a character": ({**HONEST, "status": "\ud800", "message": "\udfff" * 9000}, "crashed"),
    "long": ({**HONEST, "status": "error", "message": "x" * (8 << 20)}, "crashed"),
    "not representable": ({**HONEST, "status": "not_representable"}, "unmeasured"),
}


class ProtocolSetup:
    """A warm reference and the check of any source against it."""

    def __init__(self, session: TargetSession, store: Store, reference: ReferenceServer) -> None:
        self.session, self.store, self.reference = session, store, reference
        self.facts = reference.observe()

    def check(self, source: str) -> Check:
        program = model_new(self.store, source)
        return check_program(
            Trial(
                task=self.reference.task,
                program=program,
                build=None,
                session=self.session,
                store=self.store,
                facts=self.facts,
                reference=self.reference,
            )
        )


@pytest.fixture(scope="module")
def judge(session: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProtocolSetup]:
    store = Store(tmp_path_factory.mktemp("claims") / "store")
    with ReferenceServer(session, make_task(store, REFERENCE), store) as reference:
        yield ProtocolSetup(session, store, reference)


@pytest.mark.parametrize("claim", CLAIMS)
def test_claims_of_any_shape_are_a_verdict_and_never_our_fault(judge: ProtocolSetup, claim: str) -> None:
    fields, status = CLAIMS[claim]
    beside = fields if "ok" in fields else {}
    check = judge.check(CLAIMING.format(fields=json.dumps([fields, beside])))
    assert check.status == status, check.message
    assert len(check.model_dump_json()) < 200_000


def test_after_all_claims_an_honest_program_is_accepted(judge: ProtocolSetup) -> None:
    honest = REFERENCE.replace("class Model(", "class ModelNew(")
    assert judge.check(honest).status == "accepted"
