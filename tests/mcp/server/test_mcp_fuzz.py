"""Whatever a client sends, it gets an answer that it can act on, and the server goes on."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from stitch_mcp.server.app import build_server
from stitch_mcp.server.refusals import explain_arguments
from stitch_mcp.server.render import MAX_CHARS, render
from stitch_mcp.server.request_inputs import job_request
from stitch_mcp.server.server_context import TOOLSETS, ServerContext, open_server_context
from stitch_mcp.server.tool import Remedy, ToolAnswer
from stitch_mcp.server.tool_list import TOOLS, find_tool
from stitch_mcp.server.tools.compile_program import BuildAnswer
from stitch_tools.errors import StitchError

BROKEN = "int broken = ;"
NAMES = sorted({name for tool in TOOLS for name in find_tool(tool).request.model_fields})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.sampled_from(["../x", "/etc/passwd", "0" * 16, "last", "model.py", "model.py:Model", "\0", "~root/x"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
# `wait_s` stays 0, so that what happens to be a right call costs nobody any time.
ARGUMENTS = st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=12)), VALUES, max_size=4)


# Tools that start a process on right arguments get wrong ones only: an unknown argument is among them.
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(st.tuples(st.sampled_from(TOOLS), ARGUMENTS), min_size=1, max_size=5))
def test_any_arguments_get_a_plain_answer(workspace: Path, calls: list[tuple[str, dict[str, Any]]]) -> None:
    async def converse() -> None:
        server_context = open_server_context({"workspace": workspace}, toolsets=TOOLSETS)
        async with Client(build_server(server_context)) as client:
            for tool, arguments in calls:
                slow = find_tool(tool).work is not None
                wrong = {**arguments, "no such argument": 1} if slow else arguments
                result = await client.call_tool(tool, wrong)
                text = json.dumps(result.structured_content)
                assert len(text) < 8000
                assert "Traceback" not in text
                assert result.is_error or not slow
            assert len((await client.list_tools()).tools) == len(TOOLS)

    anyio.run(converse)


# Each field of a tool gets what is right for it, what is nearly right, or anything.
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "reference": st.sampled_from(
        ["model.py", "model.py:Model", "model.py:Nobody", "../model.py", ".", "no.py"]
    ),
    "run_id": st.sampled_from(["", "last", "0" * 16, "..", "2026"]),
    "program": st.sampled_from(["", "model.py", "0" * 16, "0" * 64, "../x", ".", "\0"]),
    "files": st.dictionaries(
        st.one_of(
            st.text(max_size=8), st.sampled_from(["a.cpp", "m.py", "../a.cpp", "a/b.cu", "/a.cpp", ""])
        ),
        st.one_of(st.text(max_size=40), st.sampled_from([BROKEN, "import torch"])),
        max_size=3,
    ),
    "main": st.sampled_from(["", "a.cpp", "../a.cpp", "b"]),
    "target": st.sampled_from(["", "cpu", "cuda", "cuda:sm_90", "tpu", "cuda:sm_0"]),
    "contract": st.dictionaries(st.sampled_from(["rtol", "mode", "x", "shapes"]), SCALARS, max_size=2),
    "archs": st.lists(st.sampled_from(["sm_90", "sm_1", "x;y", "-o/x"]), max_size=2),
}


def own_arguments(name: str) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    fields = find_tool(name).request.model_fields
    values = {field: st.one_of(PLAUSIBLE.get(field, VALUES), VALUES) for field in fields}
    given = st.fixed_dictionaries({}, optional=values)
    # Plausible values alone get further than the mixture does.
    plausible = {field: PLAUSIBLE[field] for field in fields if field in PLAUSIBLE}
    right = st.fixed_dictionaries({}, optional=plausible)
    return st.one_of(right, given).map(lambda arguments: (name, arguments))


SLOW = [name for name in TOOLS if find_tool(name).work is not None]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=st.sampled_from(SLOW).flatmap(own_arguments))
def test_what_a_call_is_about_is_found_or_refused_with_a_hint(
    server_context: ServerContext, call: tuple[str, dict[str, Any]]
) -> None:
    """All that a slow tool's call goes through before its process is started."""
    tool = find_tool(call[0])
    refused: StitchError | None = None
    try:
        request = tool.request.model_validate(call[1])
        found = job_request(server_context, tool, request)
        assert found.job_id == job_request(server_context, tool, request).job_id, (
            "an equal call is an equal job"
        )
    except ValidationError as error:
        refused = explain_arguments(tool, error)
    except StitchError as error:
        refused = error
    assert refused is None or refused.message


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(st.sampled_from(TOOLS).flatmap(own_arguments), min_size=1, max_size=6))
def test_any_mixture_of_calls_leaves_the_server_alive(
    workspace: Path, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    """Right calls start their jobs, which end with the server."""

    async def converse() -> None:
        server_context = open_server_context({"workspace": workspace}, toolsets=TOOLSETS)
        async with Client(build_server(server_context)) as client:
            for tool, arguments in calls:
                if "wait_s" in find_tool(tool).request.model_fields:
                    arguments = {**arguments, "wait_s": 0}
                result = await client.call_tool(tool, arguments)
                text = json.dumps(result.structured_content)
                assert len(text) < 8000
                assert "Traceback" not in text
                assert "fault of stitch-mcp" not in text
            assert len((await client.list_tools()).tools) == len(TOOLS)

    anyio.run(converse)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(st.text(max_size=60), min_size=1, max_size=4))
def test_any_address_of_a_resource_gets_a_plain_answer(workspace: Path, names: list[str]) -> None:
    async def converse() -> None:
        async with Client(build_server(open_server_context({"workspace": workspace}))) as client:
            for name in names:
                for uri in (f"stitch://run/{name}", f"stitch://artifact/{name}/../x", name):
                    with pytest.raises((MCPError, ValueError)):
                        await client.read_resource(uri)
            assert (await client.read_resource("stitch://guide")).contents

    anyio.run(converse)


def test_a_resource_that_there_is_not_is_named_in_the_error(workspace: Path) -> None:
    async def converse() -> None:
        async with Client(build_server(open_server_context({"workspace": workspace}))) as client:
            with pytest.raises(MCPError) as caught:
                await client.read_resource("stitch://nothing")
            assert caught.value.data == {"uri": "stitch://nothing"}

    anyio.run(converse)


@given(
    message=st.text(max_size=12_000),
    lines=st.lists(st.text(max_size=3000), max_size=30),
    command=st.text(max_size=9000),
    steps=st.integers(0, 3),
)
def test_answers_of_any_length_are_cut_to_what_clients_show(
    message: str, lines: list[str], command: str, steps: int
) -> None:
    step = Remedy(tool="get_job", arguments={"job_id": "0" * 16}, why="wait")
    answer = BuildAnswer(
        message=message, diagnostics=tuple(lines), command=command, next_steps=(step,) * steps
    )
    found = render(answer, detailed=True)
    assert len(json.dumps(found, ensure_ascii=False)) <= MAX_CHARS
    assert len(found.get("next_steps", [])) == steps, "what to do next is never cut"


def test_secrets_of_the_environment_are_blotted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "abcdef-0123456789")
    found = render(ToolAnswer(message="the key is abcdef-0123456789."), detailed=False)
    assert found["message"] == "the key is <SOME_API_KEY>."


@given(length=st.integers(0, 60_000), steps=st.integers(1, 3))
def test_what_a_client_sent_is_not_sent_back_at_any_length(length: int, steps: int) -> None:
    arguments = {"run_id": "20260101T000000.000-model-00000000", "inputs": "x" * length}
    step = Remedy(tool="analyze_reference", arguments=arguments, why="correct it")
    found = render(BuildAnswer(message="m" * 9000, next_steps=(step,) * steps), detailed=False)
    assert len(json.dumps(found, ensure_ascii=False)) <= MAX_CHARS
    assert len(found["next_steps"]) == steps
    for row in found["next_steps"]:
        assert row["arguments"]["run_id"] == arguments["run_id"]
        assert row["arguments"] == arguments or "the inputs of the first call" in row["why"]


@pytest.mark.parametrize("artifact", [None, "0" * 64])
def test_what_was_cut_points_to_the_whole_only_where_there_is_one(artifact: str | None) -> None:
    found = render(ToolAnswer(message="m" * 9000, artifact=artifact), detailed=False)
    assert ("`artifact` has the whole" in found["message"]) is (artifact is not None)
    assert "(cut" in found["message"]
