"""An agent that is a script: it calls what results propose, and writes sources where one is asked for.

No id, path of a result or error line is known to it beforehand. It stands behind every client of the tests,
the transcript in docs/mcp-journey.md and the times in docs/benchmarks/mcp.md.
"""

import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

Answer = Mapping[str, Any]
Send = Callable[[str, dict[str, Any]], Awaitable[Answer]]
"""Calls a tool by some client; gives its structured answer."""

_HERE = Path(__file__).parent
_MLP = (_HERE.parents[2] / "examples" / "programs" / "mlp.cpp").read_text(encoding="utf-8")
_POOL = (_HERE / "embedding_pool.cpp").read_text(encoding="utf-8")
EXAMPLE_DRAFTS = {
    # As if typed in haste, and with the sample's variance where LayerNorm takes that of the population.
    "mlp": (_MLP.replace("squares / kHidden", "squares / (kHiden - 1)"), _MLP),
    "embedding_pool": (_POOL.replace("squares / kWidth", "squares / (kWdith - 1)"), _POOL),
}
"""Programs for examples of the repository, one after the other: the last one is right."""
_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^:]+):(?P<line>\d+):\d+: error: .(?P<wrong>\w+). .*did you mean .(?P<right>\w+)"
)


@dataclass(frozen=True)
class Call:
    """A tool with its arguments."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """A call and its answer."""

    call: Call
    answer: Answer


@dataclass
class ScriptedAgent:
    """Chooses the next call by the last answer alone."""

    reference: str
    """What it puts where a result says PATH.py."""
    drafts: list[str]
    """What it would write, one after the other."""
    last: str = "certify_program"
    """The tool whose answer ends the journey."""
    _source: str = field(default="", init=False)
    _tool: str = field(default="", init=False)
    _timed_again: bool = field(default=False, init=False)
    """One more timing is enough: on a busy machine each is inconclusive."""

    def begin(self, tools: Sequence[str]) -> Call:
        """The first call: the tool that the server lists first."""
        return Call(tools[0], {})

    def choose(self, answer: Answer) -> Call | None:
        """The next call, None where the journey is over."""
        answer = {**answer, **(answer.get("result") or {})}
        self._tool = answer.get("tool", self._tool)
        steps = answer.get("next_steps", [])
        assert answer["status"] in ("completed", "working"), answer
        if answer["status"] == "working":
            return Call(steps[0]["tool"], dict(steps[0]["arguments"]))
        if self._tool == self.last:
            return None
        # It writes its programs itself: what the built-in stitcher can do is no part of this journey.
        for step in (step for step in steps if step["tool"] != "solve"):
            if (call := self._filled(step, answer)) is not None:
                self._tool = call.tool
                return call
        raise AssertionError(f"nothing of what is proposed can be done: {answer}")

    def _filled(self, step: Mapping[str, Any], answer: Answer) -> Call | None:
        """The step with what it asks for filled in, None where there is nothing left to write."""
        arguments = dict(step["arguments"])
        if arguments.get("rerun"):
            if self._timed_again:
                return None
            self._timed_again = True
        if "files" in arguments:
            source = self._mended(answer) or (self.drafts.pop(0) if self.drafts else None)
            if source is None:
                return None
            self._source = source
            arguments["files"] = dict.fromkeys(arguments["files"], source)
        if arguments.get("reference") == "PATH.py":
            arguments["reference"] = self.reference
        return Call(step["tool"], arguments)

    def _mended(self, answer: Answer) -> str | None:
        """The last source with every name put right for which the compiler knows a better one."""
        lines = self._source.splitlines(keepends=True)
        changed = False
        for text in answer.get("diagnostics", ()):
            found = _DIAGNOSTIC.match(text)
            if found is None:
                continue
            at = int(found["line"]) - 1
            mended = re.sub(rf"\b{found['wrong']}\b", found["right"], lines[at])
            changed = changed or mended != lines[at]
            lines[at] = mended
        return "".join(lines) if changed else None


async def journey(agent: ScriptedAgent, send: Send, tools: Sequence[str]) -> list[Turn]:
    """Every call with its answer, to the journey's end."""
    turns: list[Turn] = []
    call: Call | None = agent.begin(tools)
    while call is not None:
        answer = await send(call.tool, call.arguments)
        turns.append(Turn(call, answer))
        call = agent.choose(answer)
    return turns


async def timed_journey(workspace: Path, agent: ScriptedAgent) -> tuple[list[Turn], list[float]]:
    """A journey over standard input and output, and the seconds of each turn."""
    arguments = ["-P", "-m", "stitch_mcp", "serve", "--workspace", str(workspace)]
    # The SDK hands on few variables by itself.
    passed = {name: value for name, value in os.environ.items() if name.startswith(("STITCH_", "CUDA_"))}
    parameters = StdioServerParameters(command=sys.executable, args=arguments, env=passed)
    times: list[float] = []
    async with Client(stdio_client(parameters)) as client:

        async def send(tool: str, given: dict[str, Any]) -> Answer:
            start = time.perf_counter()
            result = await client.call_tool(tool, given)
            times.append(time.perf_counter() - start)
            answer: Answer = result.structured_content
            print(f"  {tool}: {answer['status']}, {times[-1]:.1f} s", file=sys.stderr)
            return answer

        names = [tool.name for tool in (await client.list_tools()).tools]
        return await journey(agent, send, names), times


def steps_of(turns: Sequence[Turn]) -> list[str]:
    """Names of the tools, waiting and repeated work left out."""
    return [
        turn.call.tool
        for turn in turns
        if turn.call.tool != "get_job" and not turn.call.arguments.get("rerun")
    ]


WHOLE_WAY = [
    "inspect_environment",
    "analyze_reference",
    "make_plan",
    "compile_program",
    "compile_program",
    "check_program",
    "compile_program",
    "check_program",
    "benchmark_program",
    "certify_program",
]
"""Tools of a journey with one error to mend and one wrong program."""


def results_of(turns: Sequence[Turn]) -> list[Answer]:
    """The finished answers, those that a job gave later among them."""
    return [
        {**turn.answer, **(turn.answer.get("result") or {})}
        for turn in turns
        if turn.answer["status"] == "completed"
    ]
