"""Clients that declare the Tasks extension get handles for slow calls; others never do."""

from typing import Any, Literal

import pytest
from mcp.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp.types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    Request,
    RequestParams,
    Result,
)
from pydantic import ConfigDict, Field

from stitch_mcp.server.app import build_server
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tasks import EXTENSION
from tests.mcp.server.conftest import SLOW_TO_COMPILE

pytestmark = pytest.mark.anyio
BROKEN = {"program.cpp": "int broken = ;"}


class Handle(Result):
    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = Field(alias="resultType", default="task")
    task_id: str = Field(alias="taskId")


class TaskView(Result):
    model_config = ConfigDict(extra="allow")
    status: str
    result: dict[str, Any] | None = None


class TaskRequestParams(RequestParams):
    task_id: str = Field(alias="taskId")


class GetTask(Request[TaskRequestParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"


class CancelTask(Request[TaskRequestParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"


class Tasks(ClientExtension):
    """Polls the handle to its end, as the extension's specification says; `seen` keeps what came."""

    identifier = EXTENSION

    def __init__(self, *, cancel: bool = False) -> None:
        self.cancel = cancel
        self.seen: list[str] = []

    def claims(self) -> list[ResultClaim[Handle]]:
        return [ResultClaim(result_type="task", model=Handle, resolve=self.resolve)]

    async def resolve(self, handle: Handle, context: ClaimContext) -> CallToolResult:
        params = TaskRequestParams(taskId=handle.task_id)
        if self.cancel:
            await context.session.send_request(CancelTask(params=params), Result)
        while True:
            view = await context.session.send_request(GetTask(params=params), TaskView)
            self.seen.append(view.status)
            if view.status != "working":
                return CallToolResult.model_validate(
                    view.result or {"content": [], "structuredContent": {"status": view.status}}
                )


async def test_a_slow_call_becomes_a_task_that_ends_with_the_tools_result(
    server_context: ServerContext,
) -> None:
    tasks = Tasks()
    async with Client(build_server(server_context), extensions=[tasks]) as client:
        result = await client.call_tool("compile_program", {"files": BROKEN, "wait_s": 0})
    assert tasks.seen[-1] == "completed"
    assert result.structured_content["ok"] is False


async def test_a_task_can_be_cancelled(server_context: ServerContext) -> None:
    tasks = Tasks(cancel=True)
    source = {"program.cpp": SLOW_TO_COMPILE}
    async with Client(build_server(server_context), extensions=[tasks]) as client:
        await client.call_tool("compile_program", {"files": source, "wait_s": 0})
    assert tasks.seen == ["cancelled"]


async def test_clients_without_the_extension_get_an_ordinary_result(server_context: ServerContext) -> None:
    async with Client(build_server(server_context)) as client:
        result = await client.call_tool("compile_program", {"files": BROKEN, "wait_s": 0})
        answer = result.structured_content
        assert answer["status"] == "working"
        params = TaskRequestParams(taskId=answer["job_id"])
        for request, model in ((GetTask(params=params), TaskView), (CancelTask(params=params), Result)):
            with pytest.raises(MCPError, match="get_job") as caught:
                await client.session.send_request(request, model)
            assert caught.value.code == MISSING_REQUIRED_CLIENT_CAPABILITY
            assert EXTENSION in caught.value.data["requiredCapabilities"]["extensions"]


async def test_a_task_that_there_is_not_is_refused(server_context: ServerContext) -> None:
    async with Client(build_server(server_context), extensions=[Tasks()]) as client:
        params = TaskRequestParams(taskId="0" * 16)
        with pytest.raises(MCPError, match="job"):
            await client.session.send_request(GetTask(params=params), TaskView)
