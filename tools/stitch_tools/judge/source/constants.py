"""Folding of constants: what text, bytes or number an expression is, without running it.

Only a fixed list of harmless operations is evaluated, and no result grows beyond a limit.
"""

import ast
import base64
import binascii
import codecs
import zlib
from collections.abc import Callable, Sequence

from stitch_tools.judge.source.values import Const, Plain

MAX_CHARS = 1 << 20
_CODECS = ("rot13", "rot_13", "utf-8", "utf8", "ascii", "latin-1", "hex", "base64")


def fold_binary(node: ast.BinOp, left: Plain, right: Plain) -> Const | None:
    """Sum, repetition or `%` of two constants; None where that is no constant."""
    match node.op, left, right:
        case ast.Add(), str(), str():
            return _limited(left + right)
        case ast.Add(), bytes(), bytes():
            return _limited(left + right)
        case ast.Add(), int(), int():
            return Const(left + right)
        case ast.Sub(), int(), int():
            return Const(left - right)
        case ast.Mult(), (str() | bytes()), int():
            return _limited(left * right) if len(left) * max(right, 0) <= MAX_CHARS else None
        case ast.Mult(), int(), (str() | bytes()):
            return _limited(left * right) if len(right) * max(left, 0) <= MAX_CHARS else None
        case ast.Mult(), int(), int():
            return Const(left * right) if max(abs(left), abs(right)) < 1 << 62 else None
        case ast.BitXor(), int(), int():
            return Const(left ^ right)
        case ast.Mod(), str(), (str() | int()):
            return _guarded(lambda: left.replace("%s", str(right), 1)) if left.count("%") == 1 else None
        case _:
            return None


def fold_method(value: str | bytes, name: str, arguments: Sequence[Plain]) -> Const | None:
    """`value.name(*arguments)` for the methods that text is hidden with."""
    if isinstance(value, bytes):
        allowed: tuple[str, ...] = ("decode", "hex")
    else:
        allowed = ("lower", "upper", "strip", "title", "encode", "replace", "removeprefix", "removesuffix")
        allowed += ("capitalize", "swapcase", "lstrip", "rstrip", "casefold")
    if name not in allowed or not all(isinstance(item, str | int) for item in arguments):
        return None
    if name in ("decode", "encode") and arguments and arguments[0] not in _CODECS:
        return None
    if len(value) * sum(len(item) for item in arguments if isinstance(item, str)) > 64 * MAX_CHARS:
        return None  # `replace` could make far more of it
    return _guarded(lambda: getattr(value, name)(*arguments))


def fold_call(path: str, arguments: Sequence[Plain]) -> Const | None:
    """A call of a builtin or library function that text is hidden with."""
    function = _FUNCTIONS.get(path)
    if function is None or len(arguments) not in (1, 2):
        return None
    return _guarded(lambda: function(*arguments))


def fold_slice(value: str | bytes, bounds: Sequence[Plain]) -> Const | None:
    """`value[a:b:c]` with constant bounds; None stands for one that is left out."""
    start, stop, step = (part if isinstance(part, int) else None for part in bounds)
    return _guarded(lambda: value[start:stop:step] if step != 0 else None)


def _decode(value: Plain, codec: Plain) -> Plain:
    if codec in ("rot13", "rot_13") and isinstance(value, str):
        return codecs.encode(value, "rot13")
    if codec in _CODECS and isinstance(value, bytes):
        return codecs.decode(value, str(codec))
    return None


def _inflate(value: Plain) -> Plain:
    return zlib.decompressobj().decompress(value, MAX_CHARS) if isinstance(value, bytes) else None


def _text(value: Plain) -> bytes | str:
    if not isinstance(value, bytes | str):
        raise TypeError
    return value


def _chr(value: Plain) -> str:
    return chr(value) if isinstance(value, int) else ""


def _from_hex(value: Plain) -> bytes:
    return bytes.fromhex(value) if isinstance(value, str) else b""


def _str(value: Plain) -> str:
    return str(value) if isinstance(value, str | int) else ""


def _of_text(function: Callable[[bytes | str], bytes]) -> Callable[[Plain], Plain]:
    return lambda value: function(_text(value))


_FUNCTIONS: dict[str, Callable[..., Plain]] = {
    "builtins.chr": _chr,
    "builtins.str": _str,
    "builtins.bytes.fromhex": _from_hex,
    "base64.b64decode": _of_text(base64.b64decode),
    "base64.b32decode": _of_text(base64.b32decode),
    "base64.b16decode": _of_text(base64.b16decode),
    "base64.b85decode": _of_text(base64.b85decode),
    "binascii.unhexlify": _of_text(binascii.unhexlify),
    "codecs.decode": _decode,
    "zlib.decompress": _inflate,
}


def _guarded(compute: Callable[[], Plain]) -> Const | None:
    """The result, or None where the arguments do not fit."""
    try:
        value = compute()
    except (ArithmeticError, LookupError, TypeError, ValueError, zlib.error, MemoryError):
        return None
    return None if value is None else _limited(value)


def _limited(value: Plain) -> Const | None:
    return None if isinstance(value, str | bytes) and len(value) > MAX_CHARS else Const(value)
