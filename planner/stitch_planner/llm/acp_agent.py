"""A coding agent on the user's own subscription, asked for text through the Agent Client Protocol.

Each question starts the agent anew in an empty folder, and ends it. The protocol's library wants asyncio,
which stays in here and in `acp_session`: each question has a thread with a loop of its own.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stitch_planner.llm.agent_commands import AgentCommand
from stitch_planner.llm.chat import CallLimits, ChatAnswer, ChatRequest, Finish, ModelBusyError, ModelError
from stitch_tools.errors import InterruptedRunError
from stitch_tools.secrets import blot, secrets_of
from stitch_tools.storage.scratch import make_scratch

if TYPE_CHECKING:
    from acp import RequestError

    from stitch_planner.llm.acp_session import AcpSession, MessagePipes

_START_S = 120.0
"""For an agent to open a session: a launcher may first download it."""
_POLL_S, _EXIT_POLL_S = 0.1, 0.02
_CANCEL_S = 1.0
"""For an agent that is told to stop, before it is killed."""
_END_S = 2.0
"""For an agent that has answered, to store what it wants to keep."""
_LONGEST_LINE = 64 << 20
_TAIL_BYTES, _TAIL_LINES, _TAIL_CHARS = 64 << 10, 8, 1000
_OWN_PREFIX = "STITCH_"
_FINISH: dict[str, Finish] = {
    "end_turn": "complete",
    "max_tokens": "truncated",
    "max_turn_requests": "truncated",
    "refusal": "refused",
}


class AcpAgent:
    """One agent, by the command that starts it."""

    may_bill = True

    def __init__(self, name: str, agent: AgentCommand, *, start_s: float = _START_S) -> None:
        """Nothing is started yet.

        Raises:
            ModelError: the protocol's package or the agent's command is missing.
        """
        self.name = f"acp:{name}"
        if find_spec("acp") is None:
            raise ModelError(
                f"{self.name} needs the package agent-client-protocol",
                hint="pip install 'stitch-mcp[acp]'",
            )
        self._agent, self._start_s = agent, start_s
        self._words = self._found_words()

    def ask(self, request: ChatRequest, waiting: CallLimits) -> ChatAnswer:
        """As ChatModel says. Token counts are not known: the protocol has none that is settled."""
        given_up = threading.Event()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="acp") as pool:
            asked = pool.submit(lambda: asyncio.run(self._ask(request, waiting, given_up)))
            try:
                return asked.result()
            except (
                BaseException
            ):  # Ctrl-C comes to this thread alone, and the agent must not outlive the call
                given_up.set()
                raise

    def _found_words(self) -> list[str]:
        command = self._agent.command
        try:
            words = self._agent.words
        except ValueError as error:
            raise ModelError(
                f"{self.name}: {command!r} is no command: {error}", hint=self._agent.install
            ) from None
        found = shutil.which(words[0]) if words else None
        if found is None:
            missing = words[0] if words else command
            raise ModelError(f"{self.name}: there is no command {missing!r}", hint=self._agent.install)
        # It is started in another folder.
        return [str(Path(found).absolute()), *words[1:]]

    async def _ask(self, request: ChatRequest, waiting: CallLimits, given_up: threading.Event) -> ChatAnswer:
        from stitch_planner.llm.acp_session import AcpSession

        began = time.monotonic()
        with make_scratch("acp") as folder:
            process = await self._started(folder)
            session = AcpSession(process.pipes)
            turn = asyncio.create_task(self._turn(session, process, request, folder))
            try:
                await _until_done(turn, session, waiting, given_up)
                stop_reason = turn.result()
            finally:
                turn.cancel()
                await asyncio.gather(turn, return_exceptions=True)
                await session.close()
                await process.end()
        if stop_reason not in _FINISH:
            raise ModelBusyError(f"{self.name} stopped by itself ({stop_reason})", was_sent=True)
        return ChatAnswer(
            text=session.text,
            finish=_FINISH[stop_reason],
            model=session.agent or self.name,
            latency_s=round(time.monotonic() - began, 3),
        )

    async def _started(self, folder: Path) -> "_AgentProcess":
        try:
            return await _AgentProcess.started(self._words, folder)
        except OSError as error:
            message = f"{self.name} cannot be started: {error.strerror}"
            raise ModelError(message, hint=self._agent.install) from None

    async def _turn(
        self, session: "AcpSession", process: "_AgentProcess", request: ChatRequest, folder: Path
    ) -> str:
        """Why the agent stopped."""
        from acp import RequestError

        from stitch_planner.llm.acp_session import ProtocolMismatchError

        by_hand = f"run {self._agent.command!r} by hand: it has to speak the Agent Client Protocol"
        try:
            async with asyncio.timeout(self._start_s):
                await session.start(folder)
            return await session.prompt(_prompt(request))
        except RequestError as error:
            raise self._refused(error, was_prompted=session.was_prompted) from None
        except ProtocolMismatchError as error:
            raise ModelError(f"{self.name}: {error}", hint=by_hand) from None
        except TimeoutError:
            raise ModelError(
                f"{self.name} opened no session within {self._start_s:.0f} s{process.last_lines()}",
                hint=by_hand,
            ) from None
        except ConnectionError:
            code = await process.exit_code()
            ended = "closed its output" if code is None else f"ended with exit code {code}"
            if session.was_prompted:
                message = f"{self.name} {ended} before it had answered{process.last_lines()}"
                raise ModelBusyError(message, was_sent=True) from None
            raise ModelError(
                f"{self.name} {ended} before it opened a session{process.last_lines()}",
                hint=by_hand,
            ) from None

    def _refused(self, error: "RequestError", *, was_prompted: bool) -> ModelError | ModelBusyError:
        from stitch_planner.llm.acp_session import error_text, needs_login

        message = f"{self.name} answered {error.code}: {_blotted(error_text(error))[:500]}"
        if needs_login(error):
            return ModelError(message, hint=f"log in first: {self._agent.login}")
        if was_prompted:
            return ModelBusyError(message, was_sent=True)
        return ModelError(message, hint=f"update the agent, or try {self._agent.command!r} by hand")


class _AgentProcess:
    """A running agent in a process group of its own."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        errors: int,
        pipes: "MessagePipes",
        reading: asyncio.BaseTransport,
    ) -> None:
        self.pipes = pipes
        self._process, self._errors, self._reading = process, errors, reading

    @classmethod
    async def started(cls, words: list[str], folder: Path) -> "_AgentProcess":
        """A new process.

        Raises:
            OSError: it cannot be started.
        """
        from stitch_planner.llm.acp_session import MessagePipes

        # A file: what an agent logs may fill a pipe that nobody reads.
        with tempfile.TemporaryFile() as file:
            process = subprocess.Popen(  # a command of the user's own, or of our table
                words,
                cwd=folder,
                env=_environment(os.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                bufsize=0,
                start_new_session=True,
            )
            errors = os.dup(file.fileno())
        loop = asyncio.get_running_loop()
        reader, unread = (asyncio.StreamReader(limit=_LONGEST_LINE) for _ in range(2))
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        writing, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(unread), process.stdin
        )
        writer = asyncio.StreamWriter(writing, protocol, None, loop)
        return cls(process, errors, MessagePipes(reader, writer), reading)

    async def exit_code(self, wait_s: float = 1.0) -> int | None:
        """How it ended; None where it has not within the wait."""
        end_s = time.monotonic() + wait_s
        while self._process.poll() is None and time.monotonic() < end_s:
            await asyncio.sleep(_EXIT_POLL_S)
        return self._process.returncode

    async def end(self) -> None:
        """Nothing of it is left. Its input was closed, which tells it to go."""
        await self.exit_code(_END_S)
        # Also what it may have left behind; the group is its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reading.close()
        os.close(self._errors)

    def last_lines(self) -> str:
        """What it wrote last, to be put behind a message; without secrets."""
        size = os.fstat(self._errors).st_size
        tail = os.pread(self._errors, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode("utf-8", "replace")
        # Before it is cut: half a secret would be known by nobody.
        lines = _blotted("\n".join([*self.pipes.noise, tail])).splitlines()
        shown = " | ".join([line.strip() for line in lines if line.strip()][-_TAIL_LINES:])
        return f"; it wrote: {shown[-_TAIL_CHARS:]}" if shown else ""


async def _until_done(
    turn: "asyncio.Task[str]", session: "AcpSession", waiting: CallLimits, given_up: threading.Event
) -> None:
    """Nothing, once the turn is over.

    Raises:
        InterruptedRunError: the call was given up.
        BudgetError: its time is over.
    """
    try:
        while not turn.done():
            waiting.check()
            if given_up.is_set():
                raise InterruptedRunError("stopped while the agent was asked")
            await asyncio.wait({turn}, timeout=_POLL_S)
    except BaseException:
        # So that a subscription is not used up by an answer that nobody reads.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                await session.cancel()
                await asyncio.wait({turn})
        raise


def _prompt(request: ChatRequest) -> str:
    # The protocol knows no system prompt.
    note = files("stitch_planner").joinpath("prompts", "agent_note.md").read_text(encoding="utf-8")
    return f"{request.system}\n{note}\n---\n\n{request.prompt}"


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's own, since the agent needs its login; without what is meant for us."""
    return {name: value for name, value in environ.items() if not name.startswith(_OWN_PREFIX)}


def _blotted(text: str) -> str:
    return str(blot(text, secrets_of(os.environ)))
