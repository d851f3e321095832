"""The server over streamable HTTP: a bearer token, checked Host and Origin headers, bounded requests."""

from collections.abc import Callable

from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.types import ASGIApp

from stitch_mcp.http_app import HttpOptions, TokenGuard, host_names, serve_app
from stitch_mcp.server.app import build_server
from stitch_mcp.server.server_context import ServerContext
from stitch_tools.errors import UsageError

MAX_REQUEST_BYTES = 4 << 20


def build_http(server_context: ServerContext, options: HttpOptions) -> ASGIApp:
    """The application for one workspace.

    Raises:
        UsageError: there is no token, or too short a one.
    """
    # No code path may serve without a token, whoever calls this function.
    if len(options.token) < 16:
        raise UsageError(
            "a server over HTTP needs a token", hint="set STITCH_MCP_TOKEN to 16 characters or more"
        )
    names = host_names(options)
    security = TransportSecuritySettings(
        # A page in the user's browser could otherwise reach a server on localhost under a name of its own.
        enable_dns_rebinding_protection=True,
        allowed_hosts=[form for name in names for form in (name, f"{name}:*")],
        allowed_origins=[
            f"{scheme}://{form}"
            for name in names
            for scheme in ("http", "https")
            for form in (name, f"{name}:*")
        ],
    )
    app: Starlette = build_server(server_context).streamable_http_app(
        transport_security=security, host=options.host, max_request_body_size=MAX_REQUEST_BYTES
    )
    return TokenGuard(app, options.token)


def serve_http(server_context: ServerContext, options: HttpOptions, listening: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        server_context: what is served.
        options: where and for whom.
        listening: called with the server's address as soon as it answers there.

    Raises:
        UsageError: there is no token, too short a one, or no such host here.
        EnvironmentMissingError: the port cannot be had.
    """
    serve_app(build_http(server_context, options), options, listening)
