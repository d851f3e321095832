"""Sockets that listen, before a server says that it serves."""

import errno
import os
import socket
from collections.abc import Sequence
from typing import Any

from stitch_tools.errors import EnvironmentMissingError, UsageError

_BACKLOG = 2048


def listen_at(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for all addresses of the host, on one port; 0 takes a free one.

    Raises:
        UsageError: the host is none of this machine's.
        EnvironmentMissingError: the port is taken, or may not be used.
    """
    sockets: list[socket.socket] = []
    try:
        for family, address in _addresses(host, port):
            # With port 0 the first one chooses for all.
            number = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(_listening(family, (address[0], number, *address[2:])))
            except OSError as error:
                # A name may also stand for an address family that is switched off here.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
        if not sockets:
            raise _no_host(host, "no address of this machine")
    except OSError as error:
        _close(sockets)
        raise _refused(host, port, error) from error
    except UsageError:
        _close(sockets)
        raise
    return sockets


def url_of(host: str, sockets: list[socket.socket], path: str = "/mcp") -> str:
    """Where clients find the server that listens there."""
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{shown}:{sockets[0].getsockname()[1]}{path}"


def _addresses(host: str, port: int) -> Sequence[tuple[int, tuple[Any, ...]]]:
    if not host:
        raise _no_host(host, "empty")
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise _no_host(host, getattr(error, "strerror", None) or "no host name") from error
    return list(dict.fromkeys((int(family), address) for family, _, _, _, address in rows))


def _listening(family: int, address: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            # A server that ended a moment ago does not keep the port.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _refused(host: str, port: int, error: OSError) -> EnvironmentMissingError:
    message = f"cannot listen at {host} port {port}: {error.strerror or error}"
    if error.errno == errno.EADDRINUSE:
        return EnvironmentMissingError(
            message, hint="end what listens there, or pass another --port (0: a free one)"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return EnvironmentMissingError(message, hint="pass a --port above 1023 (0: a free one)")
    return EnvironmentMissingError(message, hint="pass another --host or --port")


def _no_host(host: str, why: str) -> UsageError:
    return UsageError(
        f"--host {host[:100]!r}: {why}", hint="name an address of this machine: 127.0.0.1, or 0.0.0.0 for all"
    )


def _close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()
