"""`profile_program` in the hands of a client: the reference, then an accepted program, and what changed."""

from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from tests.mcp.server.conftest import PROGRAM
from tests.mcp.server.test_mcp_calls import connected, fields

pytestmark = pytest.mark.anyio


async def done(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a tool once its job has ended."""
    answer = fields(await client.call_tool(tool, {**arguments, "wait_s": 45}))
    while answer["status"] == "working":
        waited = fields(await client.call_tool("get_job", {"job_id": answer["job_id"], "wait_s": 45}))
        answer = {**waited, **(waited.get("result") or {})}
    return answer


async def test_a_run_shows_what_its_profiles_found(workspace: Path) -> None:
    async with connected(workspace) as client:
        run_id = (await done(client, "analyze_reference", reference="model.py"))["run_id"]
        before = await done(client, "make_plan", run_id=run_id)
        assert not before.get("bottlenecks")
        assert any(step["tool"] == "profile_program" for step in before["next_steps"])

        reference = await done(client, "profile_program", run_id=run_id, ask="interpreter_overhead")
        assert reference["outcome"] == "profiled", reference["message"]
        assert reference["message"].startswith("reference: ")
        assert reference["answers"]
        assert reference["iteration"][0].startswith("iteration: ")
        assert "kernels" not in reference
        plan = await done(client, "make_plan", run_id=run_id, rerun=True)
        assert plan["bottlenecks"] == reference["findings"]

        unchecked = await client.call_tool(
            "profile_program", {"run_id": run_id, "files": {"program.cpp": PROGRAM}, "wait_s": 45}
        )
        assert unchecked.is_error
        assert "was not checked" in fields(unchecked)["message"]

        checked = await done(client, "check_program", run_id=run_id, files={"program.cpp": PROGRAM})
        assert checked["verdict"] == "accepted", checked["message"]
        program = await done(
            client,
            "profile_program",
            run_id=run_id,
            program=checked["program_id"],
            compare=reference["artifact"],
            detail="detailed",
        )
        assert program["outcome"] == "profiled", program["message"]
        assert program["program_id"] == checked["program_id"]
        assert any(line.startswith("gone: ") for line in program["answers"])
        # It runs so shortly that on a busy machine no sample may fall into it.
        assert program.get("kernels") or any("samples" in line for line in program["not_measured"])
        again = await done(
            client, "profile_program", run_id=run_id, program="reference", rerun=True, detail="detailed"
        )
        assert "program_id" not in again
        # The run's own graph names the operations.
        assert any("relu" in line for line in again["operations"])
        review = await done(client, "review_program", run_id=run_id, program=checked["program_id"])
        assert review["profile"]
