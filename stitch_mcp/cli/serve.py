"""`stitch-mcp serve`."""

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Unpack

import click

from stitch_mcp.cli.options import json_option, session_options
from stitch_mcp.config import Settings


@click.command("serve")
@click.option("--http", is_flag=True, help="Serve over streamable HTTP instead of standard input and output.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --http: address to listen on.")
@click.option(
    "--port",
    default=8321,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="With --http: port to listen on.",
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="With --http: additional host name that clients may use for this server.",
)
@click.option("--read-only", is_flag=True, help="Offer only tools that neither build nor run anything.")
@click.option(
    "--toolsets",
    metavar="NAMES",
    help="Offer these sets of tools: steps, solve, roles, rl (default: steps,solve); with roles, clients "
    "answer runs whose coder is manual; with rl, programs get rewards.",
)
@click.option("--confirm", metavar="POLICY", help="Before steps without isolation: ask, allow or deny.")
@click.option(
    "--mcp-model-coders",
    is_flag=True,
    default=None,
    help="Let clients choose the coders llm, acp:AGENT and plugin:NAME, which spend your money or quota.",
)
@session_options
@json_option
def command(
    http: bool,
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    read_only: bool,
    toolsets: str | None,
    as_json: bool,
    **given: Unpack[Settings],
) -> int:
    """Serve the tools to an MCP client.

    Over stdio, jobs end with the server and can be resumed. With --http they continue. HTTP clients must send
    the token of STITCH_MCP_TOKEN; without that variable a token is made and printed once. With --json a
    failure to start is one JSON object; a running server writes nothing but the protocol.
    """
    del as_json
    with _uncollected():
        import anyio

        from stitch_mcp.server.server_context import open_server_context, parse_toolsets
        from stitch_mcp.server.stdio import serve_stdio

        server_context = open_server_context(
            given,
            keep_jobs=http,
            prepare_jobs=not read_only,
            read_only=read_only,
            toolsets=parse_toolsets(toolsets),
        )
    if not http:
        anyio.run(serve_stdio, server_context)
        return 0
    from stitch_mcp.http_app import HttpOptions, new_token
    from stitch_mcp.server.http import serve_http

    # A job's process needs no token.
    token = os.environ.pop("STITCH_MCP_TOKEN", "")
    made = "" if token else new_token()

    def say(url: str) -> None:
        if made:
            click.echo(f"token (STITCH_MCP_TOKEN): {made}", err=True)
        click.echo(f"serving {server_context.config.workspace} at {url}", err=True)

    serve_http(server_context, HttpOptions(host, port, token or made, allow_host), say)
    return 0


@contextmanager
def _uncollected() -> Generator[None]:
    """Exclude what the block imports from garbage collection, which would delay a call."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
