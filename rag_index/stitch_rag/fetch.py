"""One page from an address: over HTTP alone, within a time and a size; secrets of the address stay out."""

import http.client
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from stitch_tools.errors import EnvironmentMissingError, UsageError

T = TypeVar("T")
_WAIT_S = 30.0
_WHOLE_S = 300.0
_PIECE_BYTES = 1 << 16
_HANDLERS = (
    urllib.request.ProxyHandler,
    urllib.request.UnknownHandler,
    urllib.request.HTTPHandler,
    urllib.request.HTTPSHandler,
    urllib.request.HTTPDefaultErrorHandler,
    urllib.request.HTTPRedirectHandler,
    urllib.request.HTTPErrorProcessor,
)
"""Without those for files and FTP: a redirect stays on the web."""
_SECRET = re.compile(r"key|token|secret|sig|passw|pwd|auth|credential|session|code", re.IGNORECASE)
"""In the name of a query's field."""


def is_address(text: str) -> bool:
    """Whether `text` is an address of the web rather than a path."""
    return text.lower().startswith(("http://", "https://"))


def shown(address: str) -> str:
    """The address as it may be stored and shown: values of fields that look like secrets are left out."""
    parts = urlsplit(address)
    # What stands before the @ is a name and perhaps a password.
    place = parts.netloc.rpartition("@")[2]
    fields = parse_qsl(parts.query, keep_blank_values=True)
    if not any(_SECRET.search(name) for name, _ in fields):
        return urlunsplit((parts.scheme, place, parts.path, parts.query, ""))
    kept = [(name, "..." if _SECRET.search(name) else value) for name, value in fields]
    return urlunsplit((parts.scheme, place, parts.path, urlencode(kept, safe="."), ""))


def fetched(address: str, most_bytes: int, *, whole_s: float = _WHOLE_S) -> tuple[bytes, str, str | None]:
    """Content, type and declared encoding of what lies at `address`.

    Args:
        address: of the web.
        most_bytes: more are refused.
        whole_s: time for everything, however slowly a server sends.

    Raises:
        UsageError: the address is none, holds a password, or what lies there is too large.
        EnvironmentMissingError: it cannot be reached, or breaks off.
    """
    request = urllib.request.Request(_quoted(address), headers={"User-Agent": "stitch-mcp"})
    # build_opener would add the handlers for files and FTP.
    opener = urllib.request.OpenerDirector()
    for handler in _HANDLERS:
        opener.add_handler(handler())
    try:
        data, kind, charset = _within(whole_s, lambda: _answer(opener, request, most_bytes))
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise EnvironmentMissingError(
            f"{shown(address)} cannot be fetched: {_reason(error)}", hint="save the page and add the file"
        ) from None  # the cause may hold the whole address
    if len(data) > most_bytes:
        raise UsageError(
            f"{shown(address)} is larger than {most_bytes // 1_000_000} MB", hint="add a part of it"
        )
    return data, kind, charset


def _within(seconds: float, action: Callable[[], T]) -> T:
    """What `action` returns; its errors are raised.

    A socket's own limit counts from one byte to the next: a server that sends headers or chunks byte by
    byte never reaches it. The thread that is left behind does not keep the process from ending.

    Raises:
        TimeoutError: it takes longer.
    """
    done: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            done.append(action())
        except Exception as error:  # whatever it is, it is raised where somebody waits
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"it takes longer than {seconds:.0f} s")
    return done[0]


def _answer(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, most_bytes: int
) -> tuple[bytes, str, str | None]:
    with opener.open(request, timeout=_WAIT_S) as answer:
        data = _content(answer, most_bytes)
        return data, answer.headers.get_content_type(), answer.headers.get_content_charset()


def _content(answer: http.client.HTTPResponse, most_bytes: int) -> bytes:
    """The body, or one byte more than is allowed of it."""
    data = bytearray()  # bytes would be copied at each piece, and a server may send small ones
    while len(data) <= most_bytes and (piece := answer.read1(_PIECE_BYTES)):
        data += piece
    if len(data) <= most_bytes and answer.length:
        raise http.client.IncompleteRead(bytes(data), answer.length)
    return bytes(data[: most_bytes + 1])


def _reason(error: Exception) -> str:
    """What went wrong, in words that hold nothing of the address."""
    if isinstance(error, urllib.error.HTTPError):
        where = " and leads nowhere that may be followed" if 300 <= error.code < 400 else ""
        return f"the server answers {error.code}{where}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    if isinstance(error, http.client.IncompleteRead):
        return "it breaks off before its end"
    return f"{type(error).__name__}" if isinstance(error, http.client.HTTPException) else str(error)


def _quoted(address: str) -> str:
    """The address with everything escaped that HTTP has no letter for.

    Raises:
        UsageError: it is no address, or holds a password.
    """
    try:
        parts = urlsplit(address)
        place = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode("ascii")
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # no number for a port, half an IPv6 address, a name that is too long
        named, parts, place = False, urlsplit(""), ""
    if not named:
        raise UsageError("this is no address of a page", hint="give one like https://host/page.html")
    if "@" in place:
        raise UsageError(
            "an address with a user name or password is not fetched", hint="save the page and add the file"
        )
    path, query = quote(parts.path, safe="/%:@!$&'()*+,;=~"), quote(parts.query, safe="/%:@!$&'()*+,;=~?")
    return urlunsplit((parts.scheme, place, path, query, ""))
