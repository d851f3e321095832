"""Tasks of protocol 2025-11-25, spoken by hand: the SDK's client does not know them any more."""

import json
from pathlib import Path
from typing import Any

import mcp_types as types

from stitch_mcp.server.core_tasks import RELATED, VERSION
from tests.mcp.server.conftest import SLOW_TO_COMPILE
from tests.mcp.server.test_mcp_faults import HELLO, Wire, wired
from tests.mcp.server.test_mcp_transports import BROKEN


def ask(wire: Wire, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a request."""
    return wire.answer(wire.send(method, params))


def refused(wire: Wire, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The error of a request."""
    error: dict[str, Any] = wire.reply(wire.send(method, params))["error"]
    return error


def call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a call that asks for a task."""
    return {"name": tool, "arguments": arguments, "task": {"ttl": 60_000}}


def test_a_call_that_asks_for_a_task_gets_one_and_later_the_tools_result(workspace: Path) -> None:
    with wired(workspace, VERSION) as wire:
        assert wire.hello["capabilities"]["tasks"] == {
            "list": {},
            "cancel": {},
            "requests": {"tools": {"call": {}}},
        }
        tools = {tool["name"]: tool for tool in ask(wire, "tools/list", {})["tools"]}
        assert tools["compile_program"]["execution"] == {"taskSupport": "optional"}
        assert "execution" not in tools["get_job"]
        begun = types.CreateTaskResult.model_validate(
            ask(wire, "tools/call", call("compile_program", {"files": BROKEN}))
        ).task
        where = {"taskId": begun.task_id}
        answered = ask(wire, "tasks/result", where)
        assert answered["structuredContent"]["ok"] is False
        assert answered["_meta"][RELATED] == where
        assert types.GetTaskResult.model_validate(ask(wire, "tasks/get", where)).status == "completed"
        listed = types.ListTasksResult.model_validate(ask(wire, "tasks/list", {}))
        assert [task.task_id for task in listed.tasks] == [begun.task_id]
        assert refused(wire, "tasks/cancel", where)["code"] == types.INVALID_PARAMS


def test_a_task_that_works_can_be_looked_at_and_cancelled(workspace: Path) -> None:
    with wired(workspace, VERSION) as wire:
        source = {"files": {"program.cpp": SLOW_TO_COMPILE}}
        where = {"taskId": ask(wire, "tools/call", call("compile_program", source))["task"]["taskId"]}
        assert ask(wire, "tasks/get", where)["status"] == "working"
        cancelled = types.CancelTaskResult.model_validate(ask(wire, "tasks/cancel", where))
        assert cancelled.status == "cancelled"
        assert ask(wire, "tasks/result", where)["structuredContent"]["status"] == "cancelled"


def test_what_cannot_become_a_task_is_an_error(workspace: Path) -> None:
    with wired(workspace, VERSION) as wire:
        wrong = refused(wire, "tools/call", call("compile_program", {"file": BROKEN}))
        assert wrong["code"] == types.INVALID_PARAMS
        assert "did you mean `files`" in wrong["message"]
        at_once = refused(wire, "tools/call", call("get_artifact", {"id": "0" * 16}))
        assert at_once["code"] == types.METHOD_NOT_FOUND
        assert refused(wire, "tasks/result", {"taskId": "0" * 16})["code"] == types.INVALID_PARAMS


def test_an_older_protocol_has_no_tasks(workspace: Path) -> None:
    with wired(workspace) as wire:
        for version in ("2024-11-05", "2025-03-26", "2025-06-18"):
            hello = ask(wire, "initialize", {**HELLO, "protocolVersion": version})
            assert hello["protocolVersion"] == version
            assert "tasks" not in hello["capabilities"]
            assert "tools" in hello["capabilities"]
        result = ask(wire, "tools/call", call("compile_program", {"files": BROKEN}))
        assert result["structuredContent"]["ok"] is False
        assert refused(wire, "tasks/list", {})["code"] == types.METHOD_NOT_FOUND


def test_a_task_that_cannot_be_read_does_not_hide_the_others(workspace: Path) -> None:
    with wired(workspace, VERSION) as wire:
        begun = ask(wire, "tools/call", call("compile_program", {"files": BROKEN}))["task"]["taskId"]
        ask(wire, "tasks/result", {"taskId": begun})
        damaged = workspace / ".stitch" / "jobs" / ("0" * 16)
        damaged.mkdir()
        (damaged / "state.json").write_text('{"of": "another version"}', encoding="utf-8")
        assert [task["taskId"] for task in ask(wire, "tasks/list", {})["tasks"]] == [begun]
        assert "damaged" in refused(wire, "tasks/get", {"taskId": "0" * 16})["message"]


def test_the_result_of_a_tool_of_another_version_is_refused_in_plain_words(workspace: Path) -> None:
    with wired(workspace, VERSION) as wire:
        known = {"job_id": "0" * 16, "tool": "retired_tool", "status": "completed", "result": {}}
        odd = {**known, "job_id": "1" * 16, "tool": "make_plan", "result": {"steps": 7}}
        for state in (known, odd):
            folder = workspace / ".stitch" / "jobs" / str(state["job_id"])
            folder.mkdir(parents=True)
            (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
        error = refused(wire, "tasks/result", {"taskId": "0" * 16})
        assert error["code"] == types.INVALID_PARAMS
        assert "no tool 'retired_tool'" in error["message"]
        assert len(ask(wire, "tasks/list", {})["tasks"]) == 2
        error = refused(wire, "tasks/result", {"taskId": "1" * 16})
        assert "another version" in error["message"]
        assert "`rerun`" in error["message"]
