"""The lines of documentation beside compile errors, for what real compilers print."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from stitch_mcp.server.app import build_server
from stitch_mcp.server.room import open_room

pytestmark = pytest.mark.anyio


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache folder without an index: our own words answer."""
    return tmp_path / "cache"


@asynccontextmanager
async def connected(workspace: Path, cache: Path) -> AsyncGenerator[Client]:
    room = open_room({"workspace": workspace, "cache_dir": cache})
    async with Client(build_server(room), mode="2026-07-28") as client:
        yield client


async def compiled(workspace: Path, cache: Path, name: str, source: str) -> dict[str, Any]:
    async with connected(workspace, cache) as client:
        result = await client.call_tool("compile_program", {"files": {name: source}})
    return result.structured_content


async def test_warnings_and_notes_get_no_line_beside_an_error(workspace: Path, cache: Path) -> None:
    source = "void g(float);\nint f() { int unused; return undeclared_thing; }\n"
    answer = await compiled(workspace, cache, "program.cpp", source)
    assert any("warning: unused variable" in line for line in answer["diagnostics"])
    (line,) = answer["docs"]
    assert line.startswith("identifier is undefined")
