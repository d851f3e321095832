"""The server over standard input and output."""

import logging

from mcp.server.stdio import stdio_server

from stitch_mcp.server.app import build_server
from stitch_mcp.server.room import Room

_LOG = logging.getLogger(__name__)


async def serve_stdio(room: Room) -> None:
    """Serve until standard input ends, or nobody reads what is said.

    The SDK points stdout at stderr meanwhile, so that no print hurts.
    """
    server = build_server(room)
    try:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    except* BrokenPipeError:
        # Its lifespan has ended the jobs; they can be resumed.
        _LOG.warning("the client is gone")
