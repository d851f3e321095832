"""Which coders a client may choose: what costs nothing is free, the rest is the user's to allow."""

from pathlib import Path

import pytest
from mcp.client import Client

from stitch_mcp.config import load_config
from stitch_mcp.server.app import build_server
from stitch_mcp.server.coders import CoderNotAllowedError, CoderRequest, allowed_coder
from stitch_mcp.server.server_context import ServerContext
from stitch_planner.llm.model_settings import ROUNDS
from stitch_planner.runs.run import Workspace
from stitch_tools.errors import UsageError

TABLES = """
mcp-model-coders = {allowed}
rounds = 3
max-model-tokens = 1000

[models.local]
model = "m"
base_url = "http://localhost:1/v1"

[models.vendor]
model = "m"
key_env = "VENDOR_API_KEY"
"""


def settings(tmp_path: Path, *, allowed: bool):
    user = tmp_path / "config.toml"
    user.write_text(TABLES.format(allowed=str(allowed).lower()), encoding="utf-8")
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    return load_config({"workspace": workspace}, environ={}, cwd=tmp_path, user_file=user)


def test_what_costs_nothing_is_free(tmp_path: Path) -> None:
    config = settings(tmp_path, allowed=False)
    assert allowed_coder(config, CoderRequest()).coder == "stitcher"
    assert allowed_coder(config, CoderRequest()).rounds is None
    assert allowed_coder(config, CoderRequest("manual", rounds=9)).rounds == 9
    assert allowed_coder(config, CoderRequest("manual")).rounds == ROUNDS
    assert allowed_coder(config, CoderRequest("replay:calls")).coder == "replay:calls"
    for outside in ("replay:../calls", "replay:/etc"):
        with pytest.raises(UsageError, match="outside the workspace"):
            allowed_coder(config, CoderRequest(outside))
    with pytest.raises(UsageError, match="no coder 'wizard'"):
        allowed_coder(config, CoderRequest("wizard"))


@pytest.mark.parametrize("coder", ["llm", "acp:claude-code", "acp:mine"])
def test_a_coder_that_costs_money_needs_the_users_own_settings(tmp_path: Path, coder: str) -> None:
    with pytest.raises(CoderNotAllowedError) as caught:
        allowed_coder(settings(tmp_path, allowed=False), CoderRequest(coder, "local"))
    assert "mcp-model-coders = true" in caught.value.hint
    assert "manual" in caught.value.hint


def test_a_client_lowers_the_users_limits_and_raises_none(tmp_path: Path) -> None:
    config = settings(tmp_path, allowed=True)
    for asked, allowed in ((None, 1000), (10, 10), (10_000, 1000), (0, 0)):
        made = allowed_coder(config, CoderRequest("llm", "local", max_model_tokens=asked))
        assert made.limits.tokens == allowed
    assert allowed_coder(config, CoderRequest("llm", "local", rounds=100)).rounds == 3
    assert allowed_coder(config, CoderRequest("llm", "local", rounds=1)).rounds == 1
    assert allowed_coder(config, CoderRequest("acp:claude-code", max_model_usd=2.0)).limits.usd == 2.0


def test_a_client_names_models_of_the_users_settings_alone(tmp_path: Path) -> None:
    config = settings(tmp_path, allowed=True)
    with pytest.raises(CoderNotAllowedError, match="no model of the user's settings"):
        allowed_coder(config, CoderRequest("llm", "gpt-expensive"))
    with pytest.raises(UsageError, match="the key of vendor is in a variable") as caught:
        allowed_coder(config, CoderRequest("llm", "vendor"))
    assert "key_command" in caught.value.hint
    with pytest.raises(UsageError, match="needs a model"):
        allowed_coder(config, CoderRequest("llm"))


def test_no_file_of_a_workspace_allows_it(tmp_path: Path) -> None:
    (tmp_path / "stitch.toml").write_text("mcp-model-coders = true\n", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be set in a file"):
        load_config({"workspace": tmp_path}, environ={}, cwd=tmp_path, user_file=tmp_path / "none.toml")


@pytest.mark.anyio
async def test_a_refused_coder_leaves_no_run_behind(workspace: Path, server_context: ServerContext) -> None:
    async with Client(build_server(server_context)) as client:
        arguments = {"reference": "model.py", "coder": "acp:claude-code", "wait_s": 45}
        result = await client.call_tool("solve", arguments)
    assert result.is_error
    assert "may not choose the coder acp:claude-code" in result.structured_content["message"]
    assert "mcp-model-coders" in result.structured_content["message"]
    assert Workspace(workspace).run_ids() == []
