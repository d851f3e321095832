"""Messages between controller and children: what is sent comes back, and what is odd is named."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.protocol import messages_candidate, messages_reference, messages_session
from stitch_tools.protocol.memory import PackEntry
from stitch_tools.protocol.messages import (
    Done,
    Fault,
    Fd,
    Level,
    Message,
    Notice,
    Operation,
    OperationFailedError,
    decode,
    decode_one_of,
    decode_reply,
    encode,
)
from stitch_tools.protocol.messages_session import ChildEnded, InitFailed, KillTree
from stitch_tools.protocol.wire import Frame, ProtocolError

ENTRY = PackEntry(name="x", shape=[2], stride=[1], dtype="float32", offset=0, nbytes=8)


class Inner(Message):
    name: str
    fd: Fd
    data: bytes


class Everything(Operation[Done], op="everything"):
    inner: Inner | None
    level: Level
    sizes: tuple[int, ...]
    pair: tuple[str, float]
    entries: list[PackEntry]
    env: dict[str, str]
    tree: object
    flag: bool
    first: bytes
    fds: tuple[Fd, ...]


def everything(**changes: object) -> Everything:
    values: dict[str, object] = {
        "inner": Inner("n", Fd(30), b"inner"), "level": "full", "sizes": (1, 2), "pair": ("a", 1.5),
        "entries": [ENTRY], "env": {"A": "b"}, "tree": ["tuple", "leaf", {"dict": {}}], "flag": True,
        "first": b"first", "fds": (Fd(31), Fd(32)),
    }  # fmt: skip
    return Everything(**{**values, **changes})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("message", [everything(), everything(inner=None, sizes=(), fds=(), first=b"")])
def test_a_message_comes_back_as_it_was_sent(message: Everything) -> None:
    frame = encode(message)
    assert frame.message["op"] == "everything"
    assert decode(Everything, frame) == message


def test_descriptors_travel_beside_the_message() -> None:
    frame = encode(everything())
    assert frame.fds == (30, 31, 32)
    received = Frame(frame.message, (5, 6, 7))  # the kernel gives them other numbers
    message = decode(Everything, received)
    assert message.inner is not None
    assert (message.inner.fd, message.fds) == (5, (6, 7))
    assert all(type(fd) is Fd for fd in message.fds)


WRONG: dict[str, tuple[object, str]] = {
    "level": ("half", r"everything\.level: expected one of \('full', 'fs\+net', 'process'\), got str"),
    "sizes": ([1, "2"], r"everything\.sizes: expected int, got str"),
    "pair": (["a"], r"everything\.pair: expected list of 2, got list"),
    "entries": ([{"name": "x"}], r"everything\.entries: field dtype is missing"),
    "env": ({"A": 1}, r"everything\.env: expected str, got int"),
    "flag": (1, r"everything\.flag: expected bool, got int"),
    "inner": ({"name": "n", "fd": 9, "data": [0, 5]}, r"everything\.inner\.fd: expected descriptor, got int"),
    "first": ("no", r"everything\.first: expected base64, got str"),
    "fds": ([-1], r"everything\.fds: expected descriptor, got int"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_field_of_another_type_is_named_with_its_operation(name: str) -> None:
    value, text = WRONG[name]
    frame = encode(everything())
    with pytest.raises(ProtocolError, match=text):
        decode(Everything, Frame({**frame.message, name: value}, frame.fds))


def test_a_missing_and_an_unknown_field_are_named() -> None:
    frame = encode(everything())
    with pytest.raises(ProtocolError, match="everything: field more is unknown"):
        decode(Everything, Frame({**frame.message, "more": 1}, frame.fds))
    del frame.message["flag"]
    with pytest.raises(ProtocolError, match="everything: field flag is missing"):
        decode(Everything, frame)


def test_a_fault_is_raised_where_a_reply_was_awaited() -> None:
    assert decode_reply(Done, encode(Done())) == Done()
    with pytest.raises(OperationFailedError, match="KeyError: no such name") as failed:
        decode_reply(Done, encode(Fault("KeyError", "no such name", "model.py", 7)))
    assert (failed.value.fault.file, failed.value.fault.line) == ("model.py", 7)
    with pytest.raises(ProtocolError, match="error: expected dict, got str"):
        decode_reply(Done, Frame({"ok": False, "error": "no"}))


def test_a_notice_is_read_as_what_its_name_says() -> None:
    report = InitFailed(Fault("OSError", "no"))
    assert decode_one_of((ChildEnded, InitFailed), encode(report)) == report
    with pytest.raises(ProtocolError, match="'kill' is none of ChildEnded, InitFailed"):
        decode_one_of((ChildEnded, InitFailed), encode(KillTree()))


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner))


@given(changes=st.dictionaries(st.sampled_from([row.name for row in fields(Everything)]), JSON))
def test_any_json_is_a_message_or_a_protocol_error(changes: dict[str, object]) -> None:
    frame = encode(everything())
    try:
        message = decode(Everything, Frame({**frame.message, **changes}, frame.fds))
    except ProtocolError:
        return
    assert isinstance(message, Everything)


def test_every_operation_of_a_process_has_a_name_of_its_own() -> None:
    for module in (messages_session, messages_reference, messages_candidate):
        kinds = [
            kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Notice)
        ]
        names = [kind.op for kind in kinds if kind.__module__ == module.__name__]
        assert len(names) == len(set(names))
        assert all(names)
