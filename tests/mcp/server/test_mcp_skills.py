"""The skills as clients read them: by the Skills extension, and as resources, in both eras."""

import hashlib
import json
from typing import Any, Literal

import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, PaginatedRequestParams, Request, RequestParams, Result
from pydantic import ConfigDict

from stitch_mcp.server.app import build_server
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.skills import EXTENSION
from stitch_planner.skills.library import front_matter, packaged_skills

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


class OneSkillParams(RequestParams):
    uri: str


class ListSkills(Request[PaginatedRequestParams, Literal["skills/list"]]):
    method: Literal["skills/list"] = "skills/list"


class GetSkill(Request[OneSkillParams, Literal["skills/get"]]):
    method: Literal["skills/get"] = "skills/get"


class AnyResult(Result):
    model_config = ConfigDict(extra="allow")


async def listed(client: Client) -> dict[str, Any]:
    answer = await client.session.send_request(ListSkills(params=PaginatedRequestParams()), AnyResult)
    return answer.model_dump(by_alias=True)


async def one(client: Client, uri: str) -> dict[str, Any]:
    answer = await client.session.send_request(GetSkill(params=OneSkillParams(uri=uri)), AnyResult)
    return answer.model_dump(by_alias=True)


async def text_of(client: Client, uri: str) -> str:
    (contents,) = (await client.read_resource(uri)).contents
    text: Any = contents
    return text.text


@ERAS
async def test_every_file_that_is_listed_is_read_with_its_hash_and_size(
    server_context: ServerContext, mode: Any
) -> None:
    async with Client(build_server(server_context), mode=mode) as client:
        answer = await listed(client)
        assert {row["frontmatter"]["name"] for row in answer["skills"]} == {
            skill.name for skill in packaged_skills()
        }
        for row in answer["skills"]:
            assert row["uri"] in [file["uri"] for file in row["resources"]]
            for file in row["resources"]:
                content = (await text_of(client, file["uri"])).encode()
                assert file["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
                assert file["size"] == len(content)


async def test_the_extension_is_declared_and_an_entry_is_the_same_alone(
    server_context: ServerContext,
) -> None:
    async with Client(build_server(server_context), mode="auto") as client:
        capabilities = client.server_capabilities
        assert capabilities is not None
        assert capabilities.extensions is not None
        assert capabilities.extensions[EXTENSION] == {}
        assert capabilities.resources is not None
        answer = await listed(client)
        assert (answer["resultType"], answer["cacheScope"]) == ("complete", "public")
        assert answer["ttlMs"] > 0
        first = answer["skills"][0]
        assert (await one(client, first["uri"]))["skill"] == first
        page = await text_of(client, first["uri"])
        assert first["frontmatter"] == front_matter(page.split("---\n")[1])
        for uri in ("skill://no-such-skill/SKILL.md", first["uri"].replace("SKILL.md", "reference.py")):
            with pytest.raises(MCPError) as refused:
                await one(client, uri)
            assert refused.value.error.code == INVALID_PARAMS


@ERAS
async def test_clients_without_the_extension_find_the_skills_as_resources(
    server_context: ServerContext, mode: Any
) -> None:
    async with Client(build_server(server_context), mode=mode) as client:
        rows = json.loads(await text_of(client, "stitch://skills"))["skills"]
        assert len(rows) == len(packaged_skills())
        for row in rows[:2]:
            page = await text_of(client, row["uri"])
            assert page.startswith(f"---\nname: {row['name']}\ndescription: {row['description']}\n")
            assert row["sha256"] == hashlib.sha256(page.encode()).hexdigest()
        with pytest.raises(MCPError, match="skills: cpu-chunked-scan"):
            await client.read_resource("stitch://skills/no-such-skill")
