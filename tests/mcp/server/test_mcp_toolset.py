"""Resources, prompts and completions as a client reads them, in both eras."""

import json
from typing import Any

import pytest
from mcp.client import Client
from mcp.types import PromptReference, ResourceTemplateReference

from stitch_mcp.named_programs import program_of_files
from stitch_mcp.server.app import build_server
from stitch_mcp.server.request_inputs import keep_program
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.workbench import find_task
from stitch_planner.opening import begin_run
from stitch_planner.runs.recorder import OUTSIDE, record_program
from tests.mcp.server.conftest import PROGRAM

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


@pytest.fixture
def run(server_context: ServerContext) -> tuple[str, str]:
    """Ids of a run of the workspace, and of its program."""
    server_context.workspace.prepare()
    task = find_task(server_context.config, server_context.workspace, server_context.root / "model.py")
    program = program_of_files(
        {"program.cpp": PROGRAM.encode()}, server_context.workspace.store, target="cpu"
    )
    keep_program(server_context, program)
    opened = begin_run(server_context.workbench, task, coder=OUTSIDE)
    record_program(opened, program)
    opened.close()
    return opened.run_id, program.program_id


async def text_of(client: Client, uri: str) -> str:
    (contents,) = (await client.read_resource(uri)).contents
    text: Any = contents
    return text.text


@ERAS
async def test_runs_programs_and_guides_are_read_as_resources(
    server_context: ServerContext, run: tuple[str, str], mode: Any
) -> None:
    run_id, program_id = run
    async with Client(build_server(server_context), mode=mode) as client:
        fixed = [str(row.uri) for row in (await client.list_resources()).resources]
        names = ("guide", "abi", "contract", "skills", "skeleton")
        assert fixed == [f"stitch://{name}" for name in names]
        assert "stitch_forward" in await text_of(client, "stitch://abi")
        templates = [row.uri_template for row in (await client.list_resource_templates()).resource_templates]
        assert {"stitch://run/{run_id}", "stitch://artifact/{id}"} <= set(templates)
        files = json.loads(await text_of(client, f"stitch://run/{run_id}"))["files"]
        assert any(row.startswith("events.jsonl (") for row in files)
        first, *_ = (await text_of(client, f"stitch://run/{run_id}/events.jsonl")).splitlines()
        assert json.loads(first)["kind"] == "run_started"
        assert await text_of(client, f"stitch://artifact/{program_id}/program.cpp") == PROGRAM


@ERAS
async def test_prompts_are_filled_in(server_context: ServerContext, mode: Any) -> None:
    async with Client(build_server(server_context), mode=mode) as client:
        names = [prompt.name for prompt in (await client.list_prompts()).prompts]
        assert names == ["optimize_module", "port_reference", "fix_check"]
        given = {"reference": "model.py", "goal": "2x eager"}
        (message,) = (await client.get_prompt("optimize_module", given)).messages
    content: Any = message.content
    assert "model.py" in content.text
    assert "the goal is: 2x eager" in content.text


@ERAS
async def test_ids_targets_and_references_are_completed(
    server_context: ServerContext, run: tuple[str, str], mode: Any
) -> None:
    run_id, program_id = run
    where = ResourceTemplateReference(uri="stitch://run/{run_id}")
    prompt = PromptReference(name="port_reference")
    async with Client(build_server(server_context), mode=mode) as client:

        async def completed(ref: Any, name: str, begun: str) -> list[str]:
            return (await client.complete(ref, {"name": name, "value": begun})).completion.values

        assert await completed(where, "run_id", run_id[:8]) == [run_id]
        assert await completed(where, "run_id", "no such run") == []
        assert await completed(prompt, "target", "cuda:sm_9") == ["cuda:sm_90"]
        assert await completed(prompt, "reference", "mod") == ["model.py"]
        artifact = ResourceTemplateReference(uri="stitch://artifact/{id}")
        assert await completed(artifact, "id", program_id[:4]) == [program_id[:16]]


async def test_a_damaged_run_does_not_hide_the_programs_of_others(
    server_context: ServerContext, run: tuple[str, str]
) -> None:
    _, program_id = run
    damaged = server_context.workspace.runs_folder / "20990101T000000.000-model-00000000"
    damaged.mkdir()
    (damaged / "events.jsonl").write_text("no event\n{}\n", encoding="utf-8")
    artifact = ResourceTemplateReference(uri="stitch://artifact/{id}")
    async with Client(build_server(server_context)) as client:
        found = await client.complete(artifact, {"name": "id", "value": program_id[:4]})
    assert found.completion.values == [program_id[:16]]
