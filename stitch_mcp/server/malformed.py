"""What is answered to a line that is no message, so that whoever sent it need not wait for ever."""

import json
import re
from typing import Any, cast

import mcp_types as types
from pydantic import ValidationError

from stitch_mcp.server.bounded_lines import TooLong
from stitch_mcp.server.refusals import explain_surrogate, lone_surrogate

_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[ !#-\[\]-~]{1,200}")'
# Nothing is nested before it, so this is the message's own.
_FIRST_ID = re.compile(rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,\s*)*' + _ID + rb"\s*[,}]")
# The last brace of a message closes the message itself.
_LAST_ID = re.compile(rb",\s*" + _ID + rb"\s*\}\s*\Z")
_MARK = b"\xef\xbb\xbf"


def answer_to_malformed(
    line: bytes | TooLong, most: int, error: ValidationError | None
) -> types.JSONRPCError | None:
    """The error for a line that the protocol's parser refused; None where nobody waits for one.

    Args:
        line: without its end.
        most: bytes of the longest line that is read.
        error: the parser's, None for a line that it was not given.
    """
    if isinstance(line, TooLong):
        told = f"a message has at most {most >> 20} MiB; name large sources by their path in the workspace"
        return _error(_read_id(line.head, line.tail), types.INVALID_REQUEST, told)
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as fault:
        return _error(_read_id(line.removeprefix(_MARK)), types.PARSE_ERROR, _parse_fault(line, fault))
    if not isinstance(found, dict):
        kind = "a batch: send each message in a line of its own" if isinstance(found, list) else "no object"
        return _error(None, types.INVALID_REQUEST, f"this line is {kind}")
    message = cast("dict[str, Any]", found)
    if "method" not in message and ("result" in message or "error" in message):
        return None  # Its id is one of ours: under it the client would take an error for an answer to itself.
    own_id = message.get("id")
    if not isinstance(own_id, str | int) or isinstance(own_id, bool) or lone_surrogate(own_id) is not None:
        own_id = None
    if (where := lone_surrogate(message.get("params"))) is not None:
        return _error(own_id, types.INVALID_PARAMS, explain_surrogate(where))
    if fault := _shape_fault(message):
        return _error(own_id, types.INVALID_REQUEST, fault)
    said = error.errors(include_url=False, include_input=False)[0]["msg"] if error else "it cannot be read"
    return _error(own_id, types.PARSE_ERROR, said)


def has_id(line: bytes) -> bool:
    """Whether what the parser took for a notification has an id after all, one that no request may have."""
    return b'"id"' in line and "id" in json.loads(line)


def _error(own_id: str | int | None, code: int, message: str) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=own_id, error=types.ErrorData(code=code, message=message))


def _read_id(head: bytes, tail: bytes = b"") -> str | int | None:
    """The id of a message that cannot be parsed, where it stands in an unmistakable place."""
    found = _FIRST_ID.match(head) or _LAST_ID.search(tail)
    return json.loads(found[1]) if found else None


def _parse_fault(line: bytes, fault: Exception) -> str:
    if line.startswith(_MARK):
        return "this line begins with a byte order mark; send UTF-8 without one"
    if isinstance(fault, UnicodeDecodeError):
        return f"this line is not UTF-8 (byte {fault.start})"
    if isinstance(fault, json.JSONDecodeError):
        return f"this line is not JSON: {fault.msg} (character {fault.pos})"
    return "this line is no JSON that can be read: nested too deeply, or with too long a number"


def _shape_fault(message: dict[str, Any]) -> str:
    """Why a JSON object is no request; "" where it looks like one."""
    if message.get("jsonrpc") != "2.0":
        return '`jsonrpc` is not "2.0"'
    if not isinstance(message.get("method"), str):
        return "`method` is no string"
    if lone_surrogate(message["method"]) is not None:
        return explain_surrogate("method")
    own_id = message.get("id", 0)
    if not isinstance(own_id, str | int) or isinstance(own_id, bool):
        return "`id` is neither a string nor an integer"
    if lone_surrogate(own_id) is not None:
        return explain_surrogate("id")
    if not isinstance(message.get("params", {}), dict):
        return "`params` is no object"
    return ""
