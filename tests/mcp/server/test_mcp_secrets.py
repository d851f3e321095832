"""Secrets of the server's environment reach nobody, and what others wrote is marked as such."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.client import Client

from stitch_mcp.server.app import build_server
from stitch_mcp.server.server_context import open_server_context
from stitch_mcp.server.tool_list import TOOLS, find_tool
from stitch_tools.errors import UsageError
from stitch_tools.secrets import blot, secrets_of, without_secrets
from tests.mcp.server.conftest import PROGRAM

pytestmark = pytest.mark.anyio
CANARY = "sk-canary-5f1e7a9d3b"
PROXY = "canary-of-the-proxy"
# Prints what it can find of the environment, and dies.
CRASHING = PROGRAM.replace(
    '#include "stitch/abi.h"', '#include <cstdio>\n#include <cstdlib>\n#include "stitch/abi.h"'
).replace(
    "  const float* x =",
    '  const char* key = std::getenv("STITCH_TEST_API_KEY");\n'
    '  std::fprintf(stderr, "key=%s canary=sk-canary-5f1e7a9d3b\\n", key ? key : "none");\n'
    "  std::fflush(stderr);\n  std::abort();\n  const float* x =",
    1,
)
TELLING = """
import os

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError(f"{dict(os.environ)} {open('/proc/self/environ').read()}")


def get_inputs():
    return [torch.randn(8)]
"""


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose environment holds secrets."""
    monkeypatch.setenv("STITCH_TEST_API_KEY", CANARY)
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:{PROXY}@proxy.example:3128")


@asynccontextmanager
async def connected(workspace: Path) -> AsyncGenerator[Client]:
    server_context = open_server_context({"workspace": workspace})
    async with Client(build_server(server_context), mode="2026-07-28") as client:
        yield client


async def ended(client: Client, tool: str, arguments: dict[str, Any]) -> Any:
    """The result of a call, once its job has ended."""
    result = await client.call_tool(tool, arguments)
    while result.structured_content["status"] == "working":
        result = await client.call_tool(
            "get_job", {"job_id": result.structured_content["job_id"], "wait_s": 45}
        )
    return result


def leaks(folder: Path) -> list[str]:
    """Files below the folder that hold a canary."""
    words = (CANARY.encode(), PROXY.encode())
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(word in path.read_bytes() for word in words)]


@pytest.mark.usefixtures("secret")
async def test_a_failing_compile_shows_and_keeps_no_secret(workspace: Path) -> None:
    spying = {"program.cpp": '#include "/proc/self/environ"\nint broken = ;'}
    typed = {"program.cpp": f'#error "{CANARY}"'}
    async with connected(workspace) as client:
        first = await ended(client, "compile_program", {"files": spying})
        assert leaks(workspace / ".stitch") == []
        second = await ended(client, "compile_program", {"files": typed})
    assert CANARY not in str(first) + str(second)
    assert "<STITCH_TEST_API_KEY>" in str(second.structured_content["diagnostics"])
    assert second.structured_content["untrusted"].startswith("diagnostics")


@pytest.mark.slow
@pytest.mark.usefixtures("secret")
async def test_a_crash_and_a_failing_reference_show_no_secret(workspace: Path) -> None:
    (workspace / "telling.py").write_text(TELLING, encoding="utf-8")
    async with connected(workspace) as client:
        failed = await ended(client, "analyze_reference", {"reference": "telling.py"})
        assert leaks(workspace / ".stitch") == []
        crash = {"reference": "model.py", "files": {"program.cpp": CRASHING}}
        crashed = await ended(client, "check_program", crash)
    assert failed.is_error or failed.structured_content["status"] == "failed"
    assert CANARY not in str(failed) + str(crashed)
    assert PROXY not in str(failed) + str(crashed)
    told = crashed.structured_content.get("result", crashed.structured_content)
    assert told["verdict"] == "crashed"
    assert "key=none canary=<STITCH_TEST_API_KEY>" in told["program_output"]


def test_a_key_in_a_configuration_file_is_not_repeated(workspace: Path) -> None:
    (workspace / "stitch.toml").write_text(f'[models.mine]\napi_key = "{CANARY}"\n', encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        open_server_context({"workspace": workspace})
    assert "models" in caught.value.message
    assert CANARY not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.usefixtures("secret")
async def test_a_secret_across_two_pages_is_blotted_out(workspace: Path) -> None:
    source = "// " + "x" * 5990 + CANARY + "\nint broken = ;"
    async with connected(workspace) as client:
        built = await ended(client, "compile_program", {"files": {"program.cpp": source}})
        arguments = {"id": built.structured_content["program_id"], "path": "program.cpp"}
        first = (await client.call_tool("get_artifact", arguments)).structured_content
        (step,) = first["next_steps"]
        second = (await client.call_tool(step["tool"], step["arguments"])).structured_content
    assert "<STITCH_TEST_API_KEY>" in first["text"] + second["text"]
    assert "sk-cana" not in first["text"] + second["text"]


SECRET_NAMES = (
    *("OPENAI_API_KEY", "GITHUB_PAT", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "HF_TOKEN", "DB_PWD"),
    *("MYSQL_PWD", "PGPASS", "SMTP_PASS", "SLACK_WEBHOOK", "SLACK_WEBHOOK_URL", "SENTRY_DSN"),
)


@given(name=st.sampled_from(SECRET_NAMES))
def test_names_of_secrets_are_known(name: str) -> None:
    plain = {
        "PATH": "/usr/bin",
        "MONKEY": "not a secret",
        "KEYBOARD": "dvorak-intl",
        "PWD": "/tmp/some-folder",
        "OLDPWD": "/tmp/old-folder",
        "CACHE_BYPASS": "not a secret",
        "SSH_ASKPASS": "/usr/bin/ask",
    }
    environ = {name: CANARY, **plain}
    assert without_secrets(environ) == plain
    assert set(secrets_of(environ).values()) == {name}
    assert blot([f"x{CANARY}y"], secrets_of(environ)) == [f"x<{name}>y"]


def test_a_secret_is_found_as_json_writes_it() -> None:
    secret = 'line one "quoted"\nline two'
    text = json.dumps({"a": secret})
    assert blot(text, secrets_of({"MY_SECRET": secret})) == '{"a": "<MY_SECRET>"}'


@pytest.mark.parametrize("newline", ["\n", "\\n"])
def test_a_line_of_a_secret_is_blotted_out_alone(newline: str) -> None:
    secret = newline.join(["-----BEGIN KEY-----", CANARY, "short", "-----END KEY-----"])
    told = blot(f"line 2 is {CANARY}, line 3 is short", secrets_of({"DEPLOY_KEY": secret}))
    assert told == "line 2 is <DEPLOY_KEY>, line 3 is short"


def test_every_tool_that_quotes_others_says_so() -> None:
    quoting = {name for name in TOOLS if find_tool(name).answer.QUOTED}
    # A prompt is to be followed; its own text says what is data in it. cancel_job answers as get_job.
    own = {"inspect_environment", "make_plan", "next_prompt", "submit_answer", "cancel_job"}
    assert set(TOOLS) - quoting == own
    for name in quoting:
        answer = find_tool(name).answer
        assert set(answer.QUOTED) <= set(answer.model_fields)
