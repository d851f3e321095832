"""The server over standard input and output."""

from mcp.server.stdio import stdio_server

from stitch_mcp.server.app import build_server
from stitch_mcp.server.room import Room


async def serve_stdio(room: Room) -> None:
    """Serve until standard input ends. The SDK points stdout at stderr meanwhile, so that no print hurts."""
    server = build_server(room)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())
