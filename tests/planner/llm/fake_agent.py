"""An agent that speaks the Agent Client Protocol over stdio and behaves as its argument says.

Run as a program: `fake_agent.py BEHAVIOUR [FILE]`. FILE is where some behaviours leave what a test looks at.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from acp import (
    PROTOCOL_VERSION,
    RequestError,
    run_agent,
    text_block,
    update_agent_message,
    update_agent_thought,
)
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    ToolCallStart,
    ToolCallUpdate,
)

STOPS = {"refuses": "refusal", "long": "max_tokens", "turns": "max_turn_requests", "gives_up": "cancelled"}
SESSION = "one"


class FakeAgent:
    """The agent's side, one behaviour."""

    def __init__(self, behaviour: str, file: Path | None) -> None:
        self.behaviour, self.file = behaviour, file
        self.cancelled = asyncio.Event()
        self.cwd = ""
        self.capabilities: dict[str, Any] = {}

    def on_connect(self, conn: Client) -> None:
        self.client = conn

    async def initialize(
        self, protocol_version: int, client_capabilities: Any = None, client_info: Any = None, **_: Any
    ) -> InitializeResponse:
        self.capabilities = client_capabilities.model_dump(mode="json")
        if self.behaviour == "newer":
            protocol_version = PROTOCOL_VERSION + 1
        return InitializeResponse(
            protocol_version=protocol_version,
            agent_capabilities=AgentCapabilities(),
            agent_info=Implementation(name="fake", version="1.2"),
        )

    async def new_session(self, cwd: str, **_: Any) -> NewSessionResponse:
        if self.behaviour == "logged_out":
            raise RequestError.auth_required()
        if self.behaviour == "broken":
            raise RequestError.internal_error({"details": f"no home, {os.environ.get('FAKE_API_KEY')}"})
        self.cwd = cwd
        return NewSessionResponse(session_id=SESSION)

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> PromptResponse:
        match self.behaviour:
            case "asks_permission":
                await self._say(json.dumps(await self._permissions()))
            case "never_ends":
                await self._never_end()
                return PromptResponse(stop_reason="cancelled")
            case "deaf":
                await asyncio.sleep(3600)
            case "crashes":
                print("first line", file=sys.stderr)
                print(f"no network, key {os.environ.get('FAKE_API_KEY')}", file=sys.stderr, flush=True)
                os._exit(3)
            case "limited":
                raise RequestError.internal_error({"details": "usage limit reached"})
            case "tells":
                await self._say(json.dumps(self._surroundings(prompt)))
            case "works":
                await self._work()
            case _:
                await self._say("x" * 100_000)
                for number in range(200):
                    await self._say(f" {number}")
        return PromptResponse(stop_reason=STOPS.get(self.behaviour, "end_turn"))  # type: ignore[arg-type]

    async def cancel(self, session_id: str, **_: Any) -> None:
        if self.file is not None:
            self.file.with_suffix(".cancelled").touch()
        self.cancelled.set()

    async def _say(self, text: str) -> None:
        await self.client.session_update(SESSION, update_agent_message(text_block(text)))

    async def _work(self) -> None:
        await self._say("I look at it.")
        await self.client.session_update(SESSION, update_agent_thought(text_block("hmm")))
        start = ToolCallStart(session_update="tool_call", tool_call_id="t", title="look")
        await self.client.session_update(SESSION, start)
        for piece in ("```cpp program.cpp\n", "int x;\n", "```\n"):
            await self._say(piece)

    async def _permissions(self) -> list[Any]:
        call = ToolCallUpdate(tool_call_id="t", title="write a file")
        allow = PermissionOption(option_id="yes", name="Allow", kind="allow_once")
        reject = PermissionOption(option_id="no", name="Reject", kind="reject_once")
        results: list[Any] = []
        for options in ([allow, reject], [allow]):
            answer = await self.client.request_permission(SESSION, call, options)
            results.append(answer.outcome.model_dump(mode="json", exclude_none=True))
        for attempt in (
            self.client.write_text_file(SESSION, f"{self.cwd}/a", "b"),
            self.client.create_terminal(SESSION, "true"),
        ):
            try:
                await attempt
            except RequestError as error:
                results.append(error.code)
        return results

    async def _never_end(self) -> None:
        assert self.file is not None
        child = subprocess.Popen(["sleep", "3600"])
        await self._say("I begin.")
        self.file.write_text(f"{os.getpid()} {child.pid}")
        await self.cancelled.wait()

    def _surroundings(self, prompt: list[Any]) -> dict[str, Any]:
        return {
            "prompt": [block.text for block in prompt],
            "cwd": self.cwd,
            "is_cwd": Path.cwd() == Path(self.cwd),
            "files": [str(path) for path in Path(self.cwd).iterdir()],
            "capabilities": self.capabilities,
            "environment": sorted(os.environ),
        }


def main() -> None:
    behaviour, file = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if behaviour == "leaves":
        print("unknown option --acp", file=sys.stderr)
        sys.exit(2)
    if behaviour == "greets":
        # A banner before the protocol, as launchers print it.
        print("Starting ...", flush=True)
    asyncio.run(run_agent(FakeAgent(behaviour, file)))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
