"""Serves an application over HTTP: a bearer token, host names, connections that begin in time."""

import asyncio
import hmac
import ipaddress
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, cast

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from stitch_mcp.listening_socket import listen_at, url_of

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

_STOP_S = 2
_HEAD_S = 10.0
"""So long a connection may take to begin a request: whoever holds many needs no token for it."""
_BACKLOG = 128
"""As often a server without free descriptors complains, each second."""


@dataclass(frozen=True)
class HttpOptions:
    """Where and for whom to serve."""

    host: str = "127.0.0.1"
    port: int = 8321
    token: str = ""
    """Bearer token that every request must carry."""
    hosts: tuple[str, ...] = ()
    """Further Host headers that are answered, where a proxy or another name is used."""


def new_token() -> str:
    """A token of 256 random bits."""
    return secrets.token_urlsafe(32)


def serve_app(
    app: ASGIApp, options: HttpOptions, listening: Callable[[str], None], *, path: str = "/mcp"
) -> None:
    """Serve an application until SIGTERM or Ctrl-C.

    Args:
        app: checks its callers itself.
        options: where.
        listening: called with the address of `path` as soon as the application answers there.
        path: what clients ask for.

    Raises:
        UsageError: there is no such host here.
        EnvironmentMissingError: the port cannot be had.
    """
    # Bound before uvicorn starts, so that an occupied port is our message and not its log line.
    sockets = listen_at(options.host, options.port)
    config = uvicorn.Config(
        app,
        log_level="warning",
        timeout_graceful_shutdown=_STOP_S,
        # Requests carry a token in their headers: none of them is logged.
        access_log=False,
        server_header=False,
        http=_Punctual,
        backlog=_BACKLOG,
    )
    # When all is closed uvicorn raises the signal that ended it once more: that is no failure.
    before = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        _Server(config, lambda: listening(url_of(options.host, sockets, path))).run(sockets)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(_number: int, _frame: FrameType | None) -> None:
    """A signal that was obeyed already."""


def host_names(options: HttpOptions) -> Sequence[str]:
    """Host names that mean this server."""
    local = ("127.0.0.1", "localhost", "[::1]")
    try:
        address = ipaddress.ip_address(options.host)
    except ValueError:
        return (*local, options.host, *options.hosts)
    if address.is_unspecified:
        return (*local, *options.hosts)
    shown = f"[{address}]" if address.version == 6 else str(address)
    return tuple(dict.fromkeys((*local, shown, *options.hosts)))


class _Server(uvicorn.Server):
    """Says so when it has started."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._say_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self._say_started()


class _Punctual(H11Protocol):
    """Ends connections on which no request begins: they could take all descriptors."""

    _look_again: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] # uvicorn's
        super().connection_made(transport)
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look_again is not None:
            self._look_again.cancel()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        # uvicorn has None here before the first request, and says otherwise.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        waiting = cycle is None or cycle.response_complete
        self._look_again = self.loop.call_later(_HEAD_S, self._look, cycle, waiting)

    def _look(self, before: object, waited: bool) -> None:
        """Go on looking, unless this connection waited as long for the same request."""
        if waited and self.cycle is before:
            self.transport.close()
        else:
            self._look_later()


class TokenGuard:
    """Turns away what carries no token, before anything of it is read."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        """Guards `app` with `token`."""
        self._app = app
        self._expected = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request with the token on, and refuse any other."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        # The scheme's name may be written in either case (RFC 7235).
        # Compared in constant time: the time of the answer must not tell how much of a guess was right.
        same = hmac.compare_digest(given.strip(" ").encode("utf-8", "replace"), self._expected)
        if scope["type"] == "http" and same and scheme.lower() == "bearer":
            await self._app(scope, receive, send)
            return
        refusal = JSONResponse(
            {"error": "a bearer token is needed"}, status_code=401, headers={"WWW-Authenticate": "Bearer"}
        )
        await refusal(scope, receive, send)
