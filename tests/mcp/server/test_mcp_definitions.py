"""What is offered: small schemas, honest annotations, published as they are."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from stitch_mcp.server.definitions import (
    prompt_definitions,
    resource_definitions,
    template_definitions,
    tool_definitions,
)
from stitch_mcp.server.prompts import PROMPTS, prompt_text
from stitch_mcp.server.published import BEGIN, definitions, sizes, snapshot, with_table
from stitch_mcp.server.resources import FIXED
from stitch_mcp.server.server_context import open_server_context, parse_toolsets
from stitch_mcp.server.tool_list import TOOLS, find_tool
from stitch_mcp.server.toolset import fitting, instructions, named_tools, offered
from stitch_tools.errors import UsageError

ROOT = Path(__file__).parents[3]


def test_the_tool_list_stays_small() -> None:
    found = sizes()
    assert found["inputs"] < 14_000
    assert found["whole"] < 26_000


def test_a_client_that_counts_the_tool_list_finds_it_under_28_000_bytes() -> None:
    server_context = open_server_context({"workspace": ROOT})
    tools = tool_definitions(server_context, with_tasks=True)
    listed = {"tools": [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]}
    assert len(json.dumps(listed).encode("utf-8")) <= 27_900


def test_every_input_and_every_resource_is_described() -> None:
    for tool in definitions():
        for name, row in tool["inputSchema"]["properties"].items():
            assert row.get("description"), f"{tool['name']}: {name}"
    for listed in (*resource_definitions(), *template_definitions()):
        assert listed.description, listed.name


def test_documents_name_bounds_of_the_tool_list_not_sizes_that_change() -> None:
    for page, words in (("mcp.md", ("14 kB", "26 kB")), ("benchmarks/mcp.md", ("14,000 B", "26,000 B"))):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert all(f"less than {word}" in text or f"under {word}" in text for word in words), page
        named = set(re.findall(r"\b\d[\d.,]* k?B\b", text)) - set(words)
        assert not [size for size in named if re.match(r"(13|25)[.,]", size)], page


def test_a_scenario_without_a_check_does_not_count_as_passed() -> None:
    page = (ROOT / "docs" / "mcp-conformance.md").read_text(encoding="utf-8")
    for part in page.split("## Conformance, ")[1:]:
        rows = re.findall(r"^\| ([a-z0-9-]+) \| (\d+) \| (\d+|-) \|", part, re.MULTILINE)
        whole = sum(passed != "0" and failed == "-" for _, passed, failed in rows)
        empty = sum(passed == "0" and failed == "-" for _, passed, failed in rows)
        assert f"- {whole} of {len(rows)} scenarios pass whole, {empty} made no check;" in part


def test_published_definitions_are_those_of_the_server() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert BEGIN in page
    assert with_table(page) == page, "run: python -m stitch_mcp.server.published"
    kept = (ROOT / "docs" / "schemas" / "mcp-tools.json").read_text(encoding="utf-8")
    assert kept == snapshot(), "run: python -m stitch_mcp.server.published"


@pytest.mark.parametrize("tool", definitions(), ids=lambda tool: tool["name"])
def test_each_definition_is_complete_and_plain(tool: dict[str, Any]) -> None:
    for schema in (tool["inputSchema"], tool["outputSchema"]):
        jsonschema.Draft202012Validator.check_schema(schema)
        text = json.dumps(schema)
        assert '"$ref"' not in text
        assert '"null"' not in text
        assert '"default"' not in text
    assert tool["inputSchema"]["additionalProperties"] is False
    assert 40 < len(tool["description"]) < 300
    assert len(tool["name"]) <= 40
    assert tool["title"]
    assert tool["annotations"]["openWorldHint"] is False
    if not tool["annotations"]["readOnlyHint"]:
        assert tool["annotations"]["destructiveHint"] is (tool["name"] == "cancel_job")


def test_every_tool_is_a_module_of_its_name_with_one_way_to_answer() -> None:
    for name in TOOLS:
        tool = find_tool(name)
        assert tool.name == name
        assert (tool.work is None) != (tool.reply is None)


def test_read_only_and_toolsets_leave_tools_out(tmp_path: Path) -> None:
    settings = {"workspace": tmp_path}
    everything = parse_toolsets("steps,solve,read,rl")
    assert offered(open_server_context(settings, toolsets=everything)) == list(TOOLS)
    unasked = offered(open_server_context(settings))
    assert list(unasked) == [name for name in TOOLS if name != "reward_program"]
    looking = [
        "inspect_environment",
        "search_docs",
        "review_program",
        "next_prompt",
        "get_job",
        "get_artifact",
    ]
    assert offered(open_server_context(settings, read_only=True)) == looking
    solving = offered(open_server_context(settings, toolsets=parse_toolsets("solve")))
    assert solving == [
        "inspect_environment",
        "solve",
        "next_prompt",
        "submit_answer",
        "get_job",
        "cancel_job",
        "get_artifact",
    ]
    for wrong in ("", "solve,all"):
        with pytest.raises(UsageError):
            parse_toolsets(wrong)


@pytest.mark.parametrize("toolsets", [None, "steps", "solve"])
@pytest.mark.parametrize("read_only", [False, True])
def test_no_words_tell_to_call_what_is_not_offered(
    tmp_path: Path, toolsets: str | None, read_only: bool
) -> None:
    server_context = open_server_context(
        {"workspace": tmp_path}, read_only=read_only, toolsets=parse_toolsets(toolsets)
    )
    here = set(offered(server_context))
    assert here.issuperset(named_tools(instructions(server_context)))
    for prompt in prompt_definitions(server_context):
        _, text = prompt_text(prompt.name, {row.name: "x" for row in prompt.arguments or ()})
        assert here.issuperset(named_tools(text)), prompt.name
    for tool in tool_definitions(server_context):
        told, _, remark = (tool.description or "").partition(" (Not offered by this server: ")
        lacking = [name for name in named_tools(told) if name not in here]
        assert remark == (f"{', '.join(lacking)}.)" if lacking else "")
    assert bool(prompt_definitions(server_context)) is (toolsets != "solve" and not read_only)


def test_a_verb_is_no_tool() -> None:
    assert named_tools("solve the task again with `stitch-mcp solve REF`") == ()
    assert named_tools("call solve, or analyze_reference") == ("analyze_reference", "solve")


def test_a_text_says_which_of_its_tools_are_missing(tmp_path: Path) -> None:
    server_context = open_server_context({"workspace": tmp_path}, read_only=True)
    told = fitting(server_context, "open one with analyze_reference")
    assert told == "open one with analyze_reference (Not offered by this server: analyze_reference.)"


def test_server_json_has_what_the_registry_asks_of_a_package() -> None:
    """The parts of the registry's schema that a package like ours touches, spelled out by hand."""
    server = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))
    text = {"type": "string", "minLength": 1}
    argument = {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"enum": ["positional", "named"]}, "value": text},
    }
    variable = {"type": "object", "required": ["name"], "properties": {"name": text, "description": text}}
    package = {
        "type": "object",
        "required": ["registryType", "identifier", "transport"],
        "properties": {
            "transport": {"type": "object", "required": ["type"]},
            "packageArguments": {"type": "array", "items": argument},
            "environmentVariables": {"type": "array", "items": variable},
        },
    }
    schema = {
        "type": "object",
        "required": ["name", "description", "version"],
        "properties": {
            "name": {"type": "string", "pattern": r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$"},
            "description": {"type": "string", "minLength": 1, "maxLength": 100},
            "title": {"type": "string", "minLength": 1, "maxLength": 100},
            "packages": {"type": "array", "items": package},
        },
    }
    jsonschema.validate(server, schema)
    (package,) = server["packages"]
    assert [row["value"] for row in package["packageArguments"]] == ["serve"]


def test_fixed_resources_and_prompts_come_from_the_package() -> None:
    for resource in FIXED:
        assert len(resource.read()) > 200, resource.uri
    for prompt in PROMPTS:
        given = {argument.name: "VALUE {x}" for argument in prompt.arguments}
        _, text = prompt_text(prompt.name, given)
        assert "VALUE {x}" in text
    with pytest.raises(UsageError, match="missing reference"):
        prompt_text("optimize_module", {})
    with pytest.raises(UsageError, match="no prompt"):
        prompt_text("../guide", {})
