"""One question to an agent in the Agent Client Protocol: what is sent, what is granted, what is gathered.

Imports the optional package `agent-client-protocol`, so it is itself imported only when an agent is asked.
"""

import contextlib
import json
from asyncio import StreamReader, StreamWriter
from collections import deque
from pathlib import Path
from typing import Any, cast

from acp import AGENT_METHODS, CLIENT_METHODS, PROTOCOL_VERSION, RequestError
from acp.connection import Connection
from acp.schema import (
    AllowedOutcome,
    CancelNotification,
    ClientCapabilities,
    DeniedOutcome,
    FileSystemCapabilities,
    Implementation,
    InitializeRequest,
    NewSessionRequest,
    PromptRequest,
    RequestPermissionResponse,
    TextContentBlock,
)
from pydantic import BaseModel

from stitch_tools import __version__

_AUTH_REQUIRED = -32000
_NOISE_LINES = 5
_REJECTING = ("reject_once", "reject_always")
_BETWEEN_MESSAGES = ("tool_call", "agent_thought_chunk", "plan")


class ProtocolMismatchError(Exception):
    """An agent's answer does not fit the protocol."""


class MessagePipes:
    """The agent's stdin and stdout as messages, one JSON object a line."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.noise: deque[str] = deque(maxlen=_NOISE_LINES)
        """The last lines that were no messages: what a program prints that speaks another language."""

    async def send(self, message: dict[str, Any]) -> None:
        """Send one message; to an agent that has ended, nothing: `receive` says that it has."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(json.dumps(message).encode() + b"\n")
            await self._writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end."""
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                self.noise.append("(a line beyond all measure)")
                continue
            if not line:
                return None
            message = _message(line)
            if message is not None:
                return message
            if line.strip():
                self.noise.append(line.decode("utf-8", "replace").strip())

    async def close(self) -> None:
        """Let the agent know that nothing more comes."""
        self._writer.close()


def _message(line: bytes) -> dict[str, Any] | None:
    try:
        message: Any = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and message.keys() & {"method", "id"} else None  # pyright: ignore[reportUnknownVariableType] # JSON


class AcpSession:
    """A session for one prompt. The library correlates requests; this decides what to say.

    Messages are read leniently, not by the library's client classes: an update of a later version of the
    protocol must not cost the answer.
    """

    def __init__(self, pipes: MessagePipes) -> None:
        self.agent = ""
        """The agent's own name and version."""
        self.was_prompted = False
        self._connection = Connection(self._handle, pipes)
        self._session_id = ""
        self._texts: list[str] = []
        self._is_new_message = False

    @property
    def text(self) -> str:
        """The agent's messages so far."""
        return "".join(self._texts)

    async def start(self, folder: Path) -> None:
        """Begin a session that offers neither files nor terminals nor servers.

        Raises:
            RequestError: the agent refuses.
            ProtocolMismatchError: it speaks another version, or not quite this one.
            ConnectionError: it has ended.
        """
        capabilities = ClientCapabilities(
            fs=FileSystemCapabilities(read_text_file=False, write_text_file=False), terminal=False
        )
        hello = await self._request(
            "initialize",
            InitializeRequest(
                protocol_version=PROTOCOL_VERSION,
                client_capabilities=capabilities,
                client_info=Implementation(name="stitch-mcp", version=__version__),
            ),
        )
        if (version := _field(hello, "protocolVersion")) != PROTOCOL_VERSION:
            raise ProtocolMismatchError(
                f"it speaks version {version} of ACP, and version {PROTOCOL_VERSION} is needed"
            )
        names = (_field(hello, "agentInfo", key) for key in ("name", "version"))
        self.agent = " ".join(name for name in names if isinstance(name, str))
        opened = await self._request("session_new", NewSessionRequest(cwd=str(folder), mcp_servers=[]))
        session_id = _field(opened, "sessionId")
        if not isinstance(session_id, str):
            raise ProtocolMismatchError("it opened a session without an id")
        self._session_id = session_id

    async def prompt(self, text: str) -> str:
        """Why the agent stopped, once it has answered.

        Raises:
            RequestError: it could not answer.
            ConnectionError: it has ended.
        """
        self.was_prompted = True
        block = TextContentBlock(type="text", text=text)
        done = await self._request(
            "session_prompt", PromptRequest(session_id=self._session_id, prompt=[block])
        )
        return str(_field(done, "stopReason"))

    async def cancel(self) -> None:
        """Tell the agent to stop working on the prompt."""
        if self.was_prompted:
            notice = CancelNotification(session_id=self._session_id)
            with contextlib.suppress(ConnectionError):
                await self._connection.send_notification(AGENT_METHODS["session_cancel"], _json(notice))

    async def close(self) -> None:
        """End the connection."""
        await self._connection.close()

    async def _request(self, method: str, params: BaseModel) -> Any:
        return await self._connection.send_request(AGENT_METHODS[method], _json(params))

    async def _handle(self, method: str, params: Any, is_notification: bool) -> Any:
        if method == CLIENT_METHODS["session_update"]:
            self._gather(_field(params, "update"))
            return None
        if method == CLIENT_METHODS["session_request_permission"]:
            return _json(RequestPermissionResponse(outcome=_rejection(_field(params, "options"))))
        if is_notification:
            return None
        raise RequestError.method_not_found(method)

    def _gather(self, update: Any) -> None:
        kind = _field(update, "sessionUpdate")
        if kind in _BETWEEN_MESSAGES:
            self._is_new_message = bool(self._texts)
        text = _field(update, "content", "text")
        if kind != "agent_message_chunk" or not isinstance(text, str):
            return
        # What is said before and after a tool call is two messages: a fence must begin a line.
        if self._is_new_message:
            self._texts.append("\n\n")
            self._is_new_message = False
        self._texts.append(text)


def needs_login(error: RequestError) -> bool:
    """Whether the agent wants its user to log in first."""
    return error.code == _AUTH_REQUIRED


def error_text(error: RequestError) -> str:
    """An agent's error with the details that it gives."""
    details = _field(error.data, "details") or _field(error.data, "message") or error.data
    return f"{error}: {details}" if details else str(error)


def _rejection(options: Any) -> AllowedOutcome | DeniedOutcome:
    """The option that rejects; where there is none, the outcome `cancelled`.

    `cancelled` alone would be simpler, but means that the whole turn ends, and some agents then stop.
    """
    for kind in _REJECTING:
        for option in options if isinstance(options, list) else ():  # pyright: ignore[reportUnknownVariableType] # JSON
            option_id = _field(option, "optionId")
            if _field(option, "kind") == kind and isinstance(option_id, str):
                return AllowedOutcome(outcome="selected", option_id=option_id)
    return DeniedOutcome(outcome="cancelled")


def _json(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _field(value: Any, *path: str) -> Any:
    """What lies at a path in JSON; None where there is nothing."""
    found: Any = value
    for key in path:
        found = cast("dict[str, Any]", found).get(key) if isinstance(found, dict) else None
    return found
