"""Other people's clients: the protocol's own tools, fastmcp's client, and an agent of pydantic-ai.

The last two come with the dependency group `clients` (`pip install --group clients`).
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stitch_mcp import clients
from tests.mcp.server.journey import Answer, Call, ScriptedAgent, Turn, journey
from tests.mcp.server.test_mcp_journey import DRAFTS, judge

pytestmark = [pytest.mark.exhaustive, pytest.mark.anyio]
ROOT = Path(__file__).parents[3]
# What these packages warn of at import, of themselves and of each other, is not ours to mend.
theirs = pytest.mark.filterwarnings("ignore")


def needs(package: str) -> pytest.MarkDecorator:
    """Skips a test where the package of a client is not installed."""
    reason = f"{package} is not installed (dependency group `clients`)"
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)


@pytest.fixture
def configuration(workspace: Path) -> dict[str, Any]:
    """The configuration that `stitch-mcp init claude-code` writes into the workspace, as it was read back."""
    client = clients.find_client("claude-code")
    path = clients.config_path(client, workspace)
    clients.write_config(client, clients.launch(workspace), path)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is missing")
def test_the_inspector_and_the_conformance_suite_find_what_is_expected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [sys.executable, str(ROOT / "scripts" / "mcp-clients"), "--out", str(page)]
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", check=False, timeout=1500
    )
    if done.returncode == 5:
        pytest.skip(done.stderr[-200:])
    assert done.returncode == 0, done.stderr
    assert "UNEXPECTED" not in page.read_text(encoding="utf-8")


@needs("fastmcp")
@theirs
async def test_fastmcps_client_goes_the_whole_way(workspace: Path, configuration: dict[str, Any]) -> None:
    from fastmcp import Client  # pyright: ignore[reportMissingImports]

    async with Client(configuration) as client:  # pyright: ignore[reportUnknownVariableType]

        async def send(tool: str, arguments: dict[str, Any]) -> Answer:
            result = await client.call_tool(tool, arguments)  # pyright: ignore[reportUnknownMemberType]
            answer: Mapping[str, Any] = result.structured_content  # pyright: ignore[reportUnknownMemberType]
            return answer

        names = [tool.name for tool in await client.list_tools()]  # pyright: ignore
        turns = await journey(ScriptedAgent("model.py", list(DRAFTS)), send, names)
    judge(turns, workspace)


@needs("pydantic_ai")
@theirs
@pytest.mark.parametrize("tasks", [False, True], ids=["without tasks", "with tasks"])
async def test_an_agent_of_pydantic_ai_goes_the_whole_way(
    workspace: Path, configuration: dict[str, Any], tasks: bool
) -> None:
    from pydantic_ai import Agent  # pyright: ignore
    from pydantic_ai.mcp import MCPToolset  # pyright: ignore
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart  # pyright: ignore
    from pydantic_ai.models.function import FunctionModel  # pyright: ignore
    from pydantic_ai.usage import UsageLimits  # pyright: ignore

    scripted = ScriptedAgent("model.py", list(DRAFTS))
    turns: list[Turn] = []
    calls: list[Call] = []

    def model(messages: Any, info: Any) -> Any:
        """What a language model would say: the next call, or the end."""
        if not calls:
            call = scripted.begin([tool.name for tool in info.function_tools])
        else:
            answer = returned(messages[-1])
            turns.append(Turn(calls[-1], answer))
            call = scripted.choose(answer)
        if call is None:
            return ModelResponse(parts=[TextPart("done")])
        calls.append(call)
        return ModelResponse(parts=[ToolCallPart(call.tool, call.arguments)])

    toolset = MCPToolset(configuration, prefer_tasks=tasks, tool_error_behavior="error")
    agent = Agent(FunctionModel(model), toolsets=[toolset])
    async with agent:
        result = await agent.run("make it fast", usage_limits=UsageLimits(request_limit=None))
    assert result.output == "done"
    judge(turns, workspace)


def returned(message: Any) -> Answer:
    """What the tool answered, out of the message that a model is given; a link may stand beside it."""
    (part,) = [part for part in message.parts if part.part_kind == "tool-return"]
    contents = part.content if isinstance(part.content, list) else [part.content]
    answer: Mapping[str, Any] = contents[0]
    return answer
