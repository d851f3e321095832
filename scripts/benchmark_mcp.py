"""How fast the MCP server starts and answers, how large its list of tools is, how long a journey takes."""

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from benchmark_table import Table, spread

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "chromadb", "openai", "sentence_transformers")
CONCURRENCY = 10
REQUESTS = 200
JOURNEYS = 3
JOURNEYS_TO = ("mlp", "embedding_pool")
"""Examples that the agent has programs for; the second is the one with the shortest call."""
BARE = """
import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

TOOL = Tool(name="echo", description="Says it again.", input_schema={"type": "object"})


async def list_tools(context, params):
    return ListToolsResult(tools=[TOOL])


async def call_tool(context, params):
    return CallToolResult(content=[TextContent(text="again")])


async def serve():
    server = Server("bare", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


anyio.run(serve)
"""
LOOK = """
import sys
sys.argv = ["stitch-mcp", *sys.argv[1:]]
from stitch_mcp.cli import main
try:
    main()
finally:
    print("loaded:", *sorted(name for name in sys.modules if "." not in name), file=sys.stderr)
"""
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "b", "version": "1"}}


def lines(*methods: tuple[str, dict[str, Any]]) -> bytes:
    """The requests as a client writes them."""
    rows = [
        {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        for number, (method, params) in enumerate(methods)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def start_cpu_ms(command: list[str]) -> float:
    """CPU milliseconds of a server from its start until it has answered `initialize`, and ended."""
    with tempfile.TemporaryFile() as given:
        given.write(lines(("initialize", HELLO)))
        given.seek(0)
        process = subprocess.Popen(command, stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return (usage.ru_utime + usage.ru_stime) * 1e3


def starts(table: Table, workspace: Path, count: int = 15) -> None:
    """CPU of our start beside that of a server with one tool."""
    ours = [sys.executable, "-P", "-m", "stitch_mcp", "serve", "--workspace", str(workspace)]
    bare = [sys.executable, "-c", BARE]
    found: dict[str, list[float]] = {"bare": [], "ours": []}
    for index in range(count + 1):
        for name, command in (("bare", bare), ("ours", ours)):
            value = start_cpu_ms(command)
            if index:  # the first of each warms the disk's cache
                found[name].append(value)
    table.rows.append(["`initialize`, a server with one tool: CPU", *spread(found["bare"], "ms"), ""])
    table.rows.append(["`initialize`, this server: CPU", *spread(found["ours"], "ms"), ""])
    more = statistics.median(found["ours"]) - statistics.median(found["bare"])
    table.rows.append(["difference", f"{more:.0f} ms", "-", str(count), "150 ms"])


def loaded(table: Table, workspace: Path) -> None:
    """Which heavy packages are imported once the tools were listed."""
    asked = lines(("initialize", HELLO), ("tools/list", {}))
    command = [sys.executable, "-P", "-c", LOOK, "serve", "--workspace", str(workspace)]
    done = subprocess.run(command, input=asked, capture_output=True, check=True)
    (row,) = [line for line in done.stderr.decode().splitlines() if line.startswith("loaded:")]
    heavy = sorted(set(HEAVY) & set(row.split()))
    shown = ", ".join(heavy) or "none"
    table.rows.append([f"imported after `tools/list` of {', '.join(HEAVY)}", shown, "-", "1", "none"])


async def latencies_ms(workspace: Path, tool: str, arguments: dict[str, Any]) -> list[float]:
    """Milliseconds of each of the requests, ten of which are always under way."""
    from mcp import StdioServerParameters
    from mcp.client import Client
    from mcp.client.stdio import stdio_client

    command = ["-P", "-m", "stitch_mcp", "serve", "--workspace", str(workspace)]
    found: list[float] = []
    async with Client(stdio_client(StdioServerParameters(command=sys.executable, args=command))) as client:

        async def some(count: int) -> None:
            for _ in range(count):
                begin = time.perf_counter()
                await client.call_tool(tool, arguments)
                found.append((time.perf_counter() - begin) * 1e3)

        await some(CONCURRENCY)
        found.clear()
        async with anyio.create_task_group() as group:
            for _ in range(CONCURRENCY):
                group.start_soon(some, REQUESTS // CONCURRENCY)
    return found


def answers(table: Table, workspace: Path, turns: "list[Any]") -> None:
    """p50 and p99 of what only looks, on a workspace in which a journey was made."""
    jobs = [turn.answer["job_id"] for turn in turns if turn.answer.get("job_id")]
    artifacts = [turn.answer["artifact"] for turn in turns if turn.answer.get("artifact")]
    for tool, arguments in (
        ("get_job", {"job_id": jobs[-1], "wait_s": 0}),
        ("get_artifact", {"id": artifacts[0]}),
        ("get_artifact", {"id": turns[-1].answer["run_id"]}),
    ):
        found = anyio.run(latencies_ms, workspace, tool, arguments)
        middle, late = statistics.median(found), sorted(found)[math.ceil(0.99 * len(found)) - 1]
        what = "a run's files" if arguments.get("id") == turns[-1].answer["run_id"] else "one id"
        table.rows.append(
            [
                f"`{tool}` ({what}), {CONCURRENCY} at once: p50, p99",
                f"{middle:.1f}, {late:.1f} ms",
                "-",
                str(len(found)),
                "p99 100 ms",
            ]
        )


def listed(table: Table) -> None:
    """Characters and tokens of the list of tools as an agent is given it."""
    from stitch_mcp.server.published import listed_texts

    count = token_count()
    for name, text in listed_texts().items():
        tokens = f"{count(text):,} tokens (o200k)" if count else "tokens not counted (no bpe-openai)"
        most = 13_000 if name == "inputs" else 24_000
        shown = "names, descriptions, inputs" if name == "inputs" else "with output schemas"
        size = len(text.encode())
        # Each word of a tool changes the size, and a test holds the bound: the page names that.
        told = f"under {most:,} B" if size < most else f"{size:,} B"
        table.rows.append([f"tool list, {shown}", f"{told}; {tokens}", "-", "1", f"{most:,} B"])


def token_count() -> Callable[[str], int] | None:
    """Counts tokens as OpenAI's recent models do; None where the tokenizer is not installed."""
    try:
        import bpe_openai
    except ImportError:
        return None
    encoding = bpe_openai.get_encoding("o200k_base")
    return lambda text: len(encoding.encode(text))


@contextmanager
def workspace_of_examples() -> Generator[Path]:
    """A workspace with the examples."""
    with tempfile.TemporaryDirectory() as name:
        workspace = Path(name).resolve()
        for example in JOURNEYS_TO:
            shutil.copy(ROOT / "examples" / f"{example}.py", workspace)
        yield workspace


def travel(workspace: Path, example: str) -> "tuple[list[Any], list[float]]":
    """The turns of one journey and the seconds of each."""
    from tests.mcp.server.journey import EXAMPLE_DRAFTS, ScriptedAgent, timed_journey

    return anyio.run(timed_journey, workspace, ScriptedAgent(f"{example}.py", list(EXAMPLE_DRAFTS[example])))


def mcp() -> Table:
    """The server's start, its answers under load, its list of tools, and an agent's whole journey."""
    table = Table("MCP server", ("what", "found", "half IQR", "n", "goal"))
    listed(table)
    with workspace_of_examples() as workspace:
        starts(table, workspace)
        loaded(table, workspace)
        for example in JOURNEYS_TO:
            travel(workspace, example)  # warms the caches of builds and of torch.compile
    for example in JOURNEYS_TO:
        journeys(table, example)
    return table


def journeys(table: Table, example: str) -> None:
    """Journeys in fresh workspaces, with warm caches; and how fast answers come after the last."""
    totals: list[float] = []
    turns: list[Any] = []
    for number in range(1, JOURNEYS + 1):
        with workspace_of_examples() as workspace:
            turns, seconds = travel(workspace, example)
            totals.append(sum(seconds))
            calls = ", ".join(f"{name} {took:.1f}" for name, took in by_step(turns, seconds))
            took = f"`{example}`, journey {number}, {totals[-1]:.1f} s"
            table.notes.append(f"{took}: {calls}; outcome {outcome_of(turns)}")
            if number == JOURNEYS and example == JOURNEYS_TO[-1]:
                answers(table, workspace, turns)
    shown = f"{statistics.median(totals):.1f} s ({min(totals):.1f} to {max(totals):.1f})"
    what = f"an agent's journey on `examples/{example}.py`, {len(turns)} calls, caches warm"
    table.rows.append([what, shown, "-", str(JOURNEYS), "30 s"])


def by_step(turns: "list[Any]", seconds: list[float]) -> list[tuple[str, float]]:
    """Seconds of each call, those of waiting for it among them."""
    found: list[tuple[str, float]] = []
    for turn, took in zip(turns, seconds, strict=True):
        if turn.call.tool == "get_job" and found:
            name, before = found.pop()
            found.append((name, before + took))
        else:
            found.append((turn.call.tool, took))
    return found


def outcome_of(turns: "list[Any]") -> str:
    """What the certificate says of the program's speed."""
    answer = turns[-1].answer
    speedup = answer.get("speedup")
    return f"{answer['outcome']}, {speedup:.2f}x eager" if speedup else str(answer["outcome"])


SECTIONS: dict[str, Callable[[], Table]] = {"mcp": mcp}
