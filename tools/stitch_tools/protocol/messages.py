"""Typed messages between the controller and its children: one class an operation, which names its reply.

A message is a frozen dataclass, whose fields travel as the JSON object of a frame. A reply is a message or a
plain value and travels under `value`. The `bytes` in either travel as base64 and the `Fd`s as the frame's
descriptors, wherever they stand. Both ends come from one installation, so every field is always sent: a
missing or an unknown one is a protocol error.
"""

import base64
import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar, cast

from stitch_tools.protocol.wire import Frame, ProtocolError

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # Python 3.10 has none, and it speaks to type checkers only
    dataclass_transform = lambda **_: lambda kind: kind  # noqa: E731


# Keys beside a message's fields: the operation, whether it is a fault, and which request is answered.
_ENVELOPE = frozenset({"op", "ok", "seq"})

Level = Literal["full", "fs+net", "process"]
"""Isolation of a child, strongest first; the same type as `SandboxLevel` of the facts, in the same order."""

ReplyT_co = TypeVar("ReplyT_co", covariant=True)
MessageT = TypeVar("MessageT")
NoticeT = TypeVar("NoticeT", bound="Notice")


class Fd(int):
    """A descriptor that travels with a message.

    Who receives a reply owns its descriptors. Those of a request are closed after its handler has returned:
    map or dup what is to stay.
    """


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Message:
    """Base of what travels as an object: each subclass becomes a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True)(cls)


class Notice(Message):
    """A message that nobody answers. Subclasses have a name on the wire."""

    op: ClassVar[str]

    def __init_subclass__(cls, *, op: str = "") -> None:
        super().__init_subclass__()
        cls.op = op


class Operation(Notice, Generic[ReplyT_co]):
    """A request that is answered with a value of such a type."""

    reply: ClassVar[object]

    def __init_subclass__(cls, *, op: str) -> None:
        super().__init_subclass__(op=op)
        (cls.reply,) = typing.get_args(cls.__dict__["__orig_bases__"][0])


class Done(Message):
    """The reply of an operation that has nothing to tell."""


class Ping(Operation[int], op="ping"):
    """Ask whether the child answers, which it does with its pid."""


class Exit(Operation[Done], op="exit"):
    """Have the child end after its reply."""


class Fault(Message):
    """What is answered where an operation failed."""

    kind: str
    """The exception's class, or a word of ours: `out_of_memory`, `missing_entry`, ..."""
    message: str
    file: str | None = None
    """File and line are those of the innermost frame in the user's code."""
    line: int | None = None
    source_line: str | None = None
    hint: str | None = None
    traceback: str = ""


class OperationFailedError(Exception):
    """The child answered with a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.kind}: {fault.message}")
        self.fault = fault


def encode(message: object) -> Frame:
    """The frame of a request, a reply or a fault, without its sequence number."""
    fds: list[int] = []
    packed = _pack(message, fds)
    fields: dict[str, object] = {"ok": True, "value": packed}
    if isinstance(message, Notice):
        fields = {"op": message.op, **cast("dict[str, object]", packed)}
    elif isinstance(message, Fault):
        fields = {"ok": False, "error": packed}
    return Frame(fields, tuple(fds))


def decode(kind: type[NoticeT], frame: Frame) -> NoticeT:
    """The request or notice in a frame.

    Raises:
        ProtocolError: a field is missing, unknown or of another type; the text names message and field.
    """
    fields = {name: value for name, value in frame.message.items() if name not in _ENVELOPE}
    return cast("NoticeT", _unpack(kind, fields, kind.op, frame))


def decode_one_of(kinds: tuple[type[NoticeT], ...], frame: Frame) -> NoticeT:
    """The message in a frame, of the kind that its `op` names.

    Raises:
        ProtocolError: it is of none of these kinds.
    """
    op = frame.message.get("op")
    for kind in kinds:
        if kind.op == op:
            return decode(kind, frame)
    raise ProtocolError(f"{str(op)[:80]!r} is none of {', '.join(kind.__name__ for kind in kinds)}")


def decode_reply(kind: type[MessageT], frame: Frame) -> MessageT:
    """The reply in a frame.

    Raises:
        OperationFailedError: it is a fault.
        ProtocolError: it is neither.
    """
    # Nothing but true: a hostile child may send 1, or a text.
    if frame.message.get("ok") is True:
        return cast("MessageT", _unpack(kind, frame.message.get("value"), "reply", frame))
    raise OperationFailedError(cast("Fault", _unpack(Fault, frame.message.get("error"), "error", frame)))


def _pack(value: object, fds: list[int]) -> object:
    if isinstance(value, Fd):
        fds.append(int(value))
        return len(fds) - 1
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if dataclasses.is_dataclass(value):
        return {row.name: _pack(getattr(value, row.name), fds) for row in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_pack(item, fds) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: _pack(item, fds) for key, item in cast("dict[str, object]", value).items()}
    return value


def _unpack(kind: object, value: object, where: str, frame: Frame) -> object:
    if kind is object:
        return value
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)):
        return _unpack_object(kind, value, where, frame)
    arguments = typing.get_args(kind)
    if arguments:
        return _UNPACK_GENERIC[typing.get_origin(kind)](arguments, value, where, frame)
    if kind is bytes:
        return _unpack_bytes(value, where)
    if kind is Fd:
        # A negative index would count from the end.
        if type(value) is int and 0 <= value < len(frame.fds):
            return Fd(frame.fds[value])
        raise _wrong(where, "descriptor", value)
    # A bool is an int to Python, but not to us; a whole number is a float.
    if type(value) is kind or (kind is float and type(value) is int):
        return value
    raise _wrong(where, getattr(kind, "__name__", str(kind)), value)


def _unpack_object(kind: type, value: object, where: str, frame: Frame) -> object:
    # Exactly these fields: one that is ignored here would be a claim that nobody has looked at.
    hints, given = _fields_of(kind), _checked(dict, value, where)
    if given.keys() != hints.keys():
        odd = sorted(map(str, given.keys() ^ hints.keys()))[0]
        raise ProtocolError(f"{where}: field {odd[:80]} is {'missing' if odd in hints else 'unknown'}")
    return kind(
        **{name: _unpack(hint, given[name], f"{where}.{name}", frame) for name, hint in hints.items()}
    )


# Kept: resolving the hints takes longer than decoding, and a program is called many times.
@functools.cache
def _fields_of(kind: type) -> dict[str, object]:
    hints = typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return {row.name: hints[row.name] for row in dataclasses.fields(kind)}
    return hints


def _unpack_bytes(value: object, where: str) -> bytes:
    try:
        return base64.b64decode(_checked(str, value, where), validate=True)
    except ValueError as error:
        raise _wrong(where, "base64", value) from error


def _unpack_tuple(arguments: tuple[object, ...], value: object, where: str, frame: Frame) -> object:
    items = _checked(list, value, where)
    kinds = (arguments[0],) * len(items) if arguments[-1] is Ellipsis else arguments
    if len(items) != len(kinds):
        raise _wrong(where, f"list of {len(kinds)}", value)
    return tuple(_unpack(kind, item, where, frame) for kind, item in zip(kinds, items, strict=True))


def _unpack_list(arguments: tuple[object, ...], value: object, where: str, frame: Frame) -> object:
    return [_unpack(arguments[0], item, where, frame) for item in _checked(list, value, where)]


def _unpack_dict(arguments: tuple[object, ...], value: object, where: str, frame: Frame) -> object:
    return {
        key: _unpack(arguments[1], item, where, frame) for key, item in _checked(dict, value, where).items()
    }


def _unpack_optional(arguments: tuple[object, ...], value: object, where: str, frame: Frame) -> object:
    (kind,) = (kind for kind in arguments if kind is not type(None))
    return None if value is None else _unpack(kind, value, where, frame)


def _unpack_literal(arguments: tuple[object, ...], value: object, where: str, frame: Frame) -> object:
    if value in arguments:
        return value
    raise _wrong(where, f"one of {arguments}", value)


_UNPACK_GENERIC: dict[object, Callable[[tuple[object, ...], object, str, Frame], object]] = {
    tuple: _unpack_tuple,
    list: _unpack_list,
    dict: _unpack_dict,
    Literal: _unpack_literal,
    typing.Union: _unpack_optional,
    types.UnionType: _unpack_optional,
}


def _checked(kind: type[MessageT], value: object, where: str) -> MessageT:
    if isinstance(value, kind):
        return value
    raise _wrong(where, kind.__name__, value)


def _wrong(where: str, wanted: str, value: object) -> ProtocolError:
    return ProtocolError(f"{where}: expected {wanted}, got {type(value).__name__}")
