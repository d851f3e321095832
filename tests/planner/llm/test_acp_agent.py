"""The client of coding agents, against one of ours that speaks the real protocol and misbehaves as told."""

import json
import os
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stitch_planner.agents.model_ledger import ModelLedger
from stitch_planner.llm.acp_agent import AcpAgent
from stitch_planner.llm.agent_commands import KNOWN_AGENTS, AgentCommand, own_agent
from stitch_planner.llm.chat import CallLimits, ChatAnswer, ChatRequest, ModelBusyError, ModelError
from stitch_planner.llm.model_settings import ModelLimits, ModelSettings, require_model
from stitch_planner.llm.providers import open_model
from stitch_planner.runs.model_calls import spent_tokens
from stitch_planner.runs.run import Run, Workspace
from stitch_tools.errors import BudgetError, InterruptedRunError, UsageError

pytest.importorskip("acp")
SCRIPT = Path(__file__).with_name("fake_agent.py")
REQUEST = ChatRequest(system="be brief", prompt="add", max_output_tokens=100)
SECRET = "sk-very-secret-0123456789"


def command(behaviour: str, file: Path | None = None) -> str:
    return shlex.join([sys.executable, str(SCRIPT), behaviour, *([str(file)] if file else [])])


def agent(behaviour: str, file: Path | None = None) -> AcpAgent:
    return AcpAgent("fake", AgentCommand(command(behaviour, file), "install it", "fake login"))


def ask(model: AcpAgent, waiting: CallLimits | None = None) -> ChatAnswer:
    return model.ask(REQUEST, waiting or CallLimits(Path(), threading.Event()))


@pytest.mark.parametrize("behaviour", ["answers", "greets"])
def test_an_answer_in_many_pieces_is_put_together_in_their_order(behaviour: str) -> None:
    answer = ask(agent(behaviour))
    assert answer.text == "x" * 100_000 + "".join(f" {number}" for number in range(200))
    assert answer.finish == "complete"
    assert answer.model == "fake 1.2"
    assert (answer.input_tokens, answer.output_tokens) == (None, None)


def test_messages_around_a_tool_call_are_apart_and_thoughts_are_left_out() -> None:
    assert ask(agent("works")).text == "I look at it.\n\n```cpp program.cpp\nint x;\n```\n"


@pytest.mark.parametrize(
    ("behaviour", "finish"), [("refuses", "refused"), ("long", "truncated"), ("turns", "truncated")]
)
def test_why_it_stopped_is_told(behaviour: str, finish: str) -> None:
    assert ask(agent(behaviour)).finish == finish


def test_permissions_files_and_terminals_are_refused() -> None:
    # The rejecting option where there is one: the outcome `cancelled` would end the turn of some agents.
    told = json.loads(ask(agent("asks_permission")).text)
    assert told == [{"outcome": "selected", "option_id": "no"}, {"outcome": "cancelled"}, -32601, -32601]


def test_it_stands_in_an_empty_folder_with_the_users_environment_but_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STITCH_MCP_TOKEN", SECRET)
    monkeypatch.setenv("FAKE_API_KEY", SECRET)
    told: dict[str, Any] = json.loads(ask(agent("tells")).text)
    (prompt,) = told["prompt"]
    assert prompt.startswith("be brief\n")
    assert "Use no tools" in prompt
    assert prompt.endswith("\nadd")
    assert told["is_cwd"]
    assert told["files"] == []
    assert not Path(told["cwd"]).exists()
    assert told["capabilities"]["fs"] == {
        "field_meta": None,
        "read_text_file": False,
        "write_text_file": False,
    }
    assert told["capabilities"]["terminal"] is False
    assert {"FAKE_API_KEY", "PATH"} <= set(told["environment"])
    assert not [name for name in told["environment"] if name.startswith("STITCH_")]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_a_stop_cancels_the_turn_and_ends_all_processes(tmp_path: Path) -> None:
    file, stop = tmp_path / "pids", threading.Event()

    def stop_once_it_works() -> None:
        while not file.exists() or not file.read_text():
            stop.wait(0.02)
        stop.set()

    thread = threading.Thread(target=stop_once_it_works)
    thread.start()
    with pytest.raises(InterruptedRunError):
        ask(agent("never_ends", file), CallLimits(tmp_path, stop))
    thread.join()
    assert file.with_suffix(".cancelled").exists()
    pids = [int(pid) for pid in file.read_text().split()]
    # A process that was killed takes a moment to be gone.
    end_s = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < end_s:
        threading.Event().wait(0.02)
    assert not [pid for pid in pids if is_running(pid)]


def test_an_agent_that_does_not_listen_is_killed_at_the_deadline(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(BudgetError):
        ask(agent("deaf"), CallLimits(tmp_path, threading.Event(), end_s=began + 0.5))
    assert time.monotonic() - began < 20


def test_an_agent_that_wants_a_login_says_how() -> None:
    with pytest.raises(ModelError, match="Authentication required") as caught:
        ask(agent("logged_out"))
    assert caught.value.hint == "log in first: fake login"


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("leaves", "ended with exit code 2 before it opened a session; it wrote: unknown option --acp"),
        ("broken", "answered -32603: Internal error: no home, <FAKE_API_KEY>"),
        ("newer", "it speaks version 2 of ACP, and version 1 is needed"),
    ],
)
def test_what_cannot_begin_ends_at_once(behaviour: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_API_KEY", SECRET)
    with pytest.raises(ModelError) as caught:
        ask(agent(behaviour))
    assert said in caught.value.message


def test_a_program_of_another_kind_is_named_with_what_it_printed() -> None:
    chat = AgentCommand("sh -c 'echo Welcome!; exec sleep 3600'", "install it", "log in")
    with pytest.raises(ModelError, match="opened no session within 3 s; it wrote: Welcome!") as caught:
        ask(AcpAgent("chat", chat, start_s=3.0))
    assert "has to speak the Agent Client Protocol" in caught.value.hint


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (
            "crashes",
            "exit code 3 before it had answered; it wrote: first line | no network, key <FAKE_API_KEY>",
        ),
        ("limited", "usage limit reached"),
        ("gives_up", "stopped by itself (cancelled)"),
    ],
)
def test_what_broke_after_the_question_was_sent_may_have_been_billed(
    behaviour: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_API_KEY", SECRET)
    with pytest.raises(ModelBusyError) as caught:
        ask(agent(behaviour))
    assert caught.value.was_sent
    assert said in caught.value.message


def test_the_ledger_counts_an_agents_answer_with_its_upper_bound(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    run = Run(workspace.runs_folder / "one", workspace.store)
    settings = ModelSettings(command=command("works"))
    model = open_model("acp:mine", settings, tmp_path)
    limits = ModelLimits(tokens=REQUEST.most_input_tokens + 100)

    def wait(folder: Path) -> CallLimits:
        return CallLimits(folder, threading.Event())

    ledger = ModelLedger(run, model, settings, limits, wait, print)
    texts = {ledger.ask(REQUEST).text for _ in range(2)}
    (call,) = run.state.calls
    assert texts == {(run.folder / "calls" / "000" / "answer.md").read_text()}
    assert (call.asked.model, call.sent) == ("acp:mine", 1)
    assert spent_tokens(run.state.calls) == limits.tokens


def test_a_missing_command_or_package_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, known in KNOWN_AGENTS.items():
        with monkeypatch.context() as patch:
            patch.setenv("PATH", os.devnull)
            with pytest.raises(ModelError, match=f"acp:{name}: there is no command") as caught:
                open_model(f"acp:{name}", None, Path())
            assert caught.value.hint == known.install
    with pytest.raises(ModelError, match="No closing quotation"):
        AcpAgent("mine", own_agent("mine", "a 'b"))
    monkeypatch.setitem(sys.modules, "acp", None)
    with pytest.raises(ModelError) as caught:
        agent("answers")
    assert "stitch-mcp[acp]" in caught.value.hint


def test_only_known_agents_and_those_of_the_settings_are_coders() -> None:
    models = {"mine": ModelSettings(command="my-agent"), "remote": ModelSettings(model="m")}
    for coder in ("acp:claude-code", "acp:codex", "acp:gemini", "acp:opencode", "acp:mine"):
        require_model(coder, None, models)
    for coder, said in (("acp:remote", "no agent 'remote'"), ("acp:", "no coder"), ("acp", "no coder")):
        with pytest.raises(UsageError, match=said):
            require_model(coder, None, models)
    with pytest.raises(UsageError, match="is an agent"):
        require_model("llm", "mine", models)
