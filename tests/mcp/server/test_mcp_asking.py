"""Questions to the user over real transports: a server process, a client that can ask, both eras."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.types import ElicitRequestParams, ElicitResult

from stitch_mcp.server.server_context import ServerContext
from tests.mcp.server.conftest import SLOW_TO_COMPILE
from tests.mcp.server.test_job_supervisor import compiling, request_of, running
from tests.mcp.server.test_mcp_transports import connected, over_http, over_stdio
from tests.sampling import sampled

WAYS = [(transport, mode) for transport in ("stdio", "http") for mode in ("legacy", "2026-07-28")]

pytestmark = pytest.mark.anyio


class User:
    """Says no the first time, and yes from then on."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def answer(self, context: object, params: ElicitRequestParams) -> ElicitResult:
        del context
        self.asked.append(params.message)
        if len(self.asked) == 1:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={})


@asynccontextmanager
async def calling(transport: str, mode: str, workspace: Path, user: User | None) -> AsyncGenerator[Client]:
    """A client that asks `user`, or that cannot ask."""
    options: dict[str, Any] = {} if user is None else {"elicitation_callback": user.answer}
    if transport == "stdio":
        async with over_stdio(workspace, mode, **options) as client:
            yield client
    else:
        with over_http(workspace) as (_, url):
            async with connected(url, mode, **options) as client:
                yield client


@pytest.mark.parametrize(("transport", "mode"), sampled(WAYS, (WAYS[0], WAYS[3])))
async def test_the_user_is_asked_before_the_job_of_another_server_ends(
    workspace: Path, server_context: ServerContext, transport: str, mode: str
) -> None:
    job_id = server_context.supervisor.start(request_of(server_context, SLOW_TO_COMPILE)).job_id
    tree = compiling(server_context.supervisor, job_id)
    user = User()
    async with calling(transport, mode, workspace, user) as client:
        refused = await client.call_tool("cancel_job", {"job_id": job_id})
        assert refused.is_error
        assert "did not agree" in refused.structured_content["message"]
        assert server_context.supervisor.view(job_id).status == "working"
        ended = await client.call_tool("cancel_job", {"job_id": job_id})
        assert ended.structured_content["status"] == "cancelled"
    assert len(user.asked) == 2, "each time anew"
    assert all(job_id in message for message in user.asked)
    assert not [pid for pid in tree if running(pid)]


@pytest.mark.parametrize(("transport", "mode"), sampled(WAYS, (WAYS[0], WAYS[3])))
async def test_a_client_that_cannot_ask_ends_no_job_of_another_server(
    workspace: Path, server_context: ServerContext, transport: str, mode: str
) -> None:
    job_id = server_context.supervisor.start(request_of(server_context, SLOW_TO_COMPILE)).job_id
    compiling(server_context.supervisor, job_id)
    async with calling(transport, mode, workspace, None) as client:
        refused = await client.call_tool("cancel_job", {"job_id": job_id})
    assert refused.is_error
    assert "this client cannot ask" in refused.structured_content["message"]
    assert server_context.supervisor.view(job_id).status == "working"
