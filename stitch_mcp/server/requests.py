"""Arguments that several tools share: how references and programs are named."""

from typing import Any, Literal

from pydantic import Field

from stitch_mcp.server.tool import RepeatableRequest, ToolRequest

CALL_ONLY = frozenset({"wait_s", "rerun", "detail", "files", "main"})
"""Arguments that are not part of a job's identity: how to answer, and content that is named by its hash."""


class InRun(RepeatableRequest):
    """Arguments of a tool that works in a run."""

    run_id: str
    """Run from analyze_reference."""


class NamesProgramOfRun(InRun):
    """Arguments of a tool that works on a run's program."""

    program: str = ""
    """program_id; left out: the run's best, else its newest."""


class Detailed(ToolRequest):
    """Arguments of a tool whose answer has fields that are shown on demand."""

    detail: Literal["concise", "detailed"] = "concise"


class NamesReference(RepeatableRequest):
    """Arguments of a tool that needs a reference."""

    reference: str = ""
    """path.py, path.py:Object, task.toml, or a task_id."""


class NamesProgram(NamesReference):
    """Arguments of a tool that needs a program and its reference."""

    run_id: str = ""
    """Run from analyze_reference, instead of reference; it records the step."""
    program: str = ""
    """program_id, or path of a folder or source file. Left out: the run's newest."""
    files: dict[str, str] = Field(default_factory=dict[str, str])
    """Or the sources themselves, by relative path."""
    main: str = ""
    """Which of several files to compile."""


class JudgesProgram(NamesProgram):
    """Arguments of a tool that compares a program with its reference."""


class NamesContract(NamesReference):
    """Arguments that describe a reference whose task does not exist yet."""

    files: dict[str, str] = Field(default_factory=dict[str, str])
    """Reference sources by relative path, if not in the workspace; `reference` names one."""
    target: str = ""
    """cpu, cuda or cuda:sm_90. Default: the server's, usually cpu."""
    inputs: str = ""
    """Function that makes the inputs; default get_inputs."""
    contract: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Contract fields to set, e.g. {"rtol": 1e-4}; see stitch://contract."""
    allow_relaxed: bool = False
    """Let `contract` loosen fields; marks every later result `relaxed`."""
