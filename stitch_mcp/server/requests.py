"""Arguments that several tools share: how references and programs are named."""

from typing import Any, Literal

from pydantic import Field

from stitch_mcp.server.tool import RepeatableRequest, ToolRequest

CALL_ONLY = frozenset({"wait_s", "rerun", "detail", "files", "main"})
"""Arguments that are not part of a job's identity: how to answer, and content that is named by its hash."""

REFERENCE = "reference"
"""In place of a program: the reference itself is meant."""


class InRun(RepeatableRequest):
    """Arguments of a tool that works in a run."""

    run_id: str
    """Run from analyze_reference."""


class NamesProgramOfRun(InRun):
    """Arguments of a tool that works on a run's program."""

    program: str = ""
    """program_id; default: the run's best, else its newest."""


class Detailed(ToolRequest):
    """Arguments of a tool whose answer has fields that are shown on demand."""

    detail: Literal["concise", "detailed"] = "concise"
    """detailed: all fields."""


class NamesReference(RepeatableRequest):
    """Arguments of a tool that needs a reference."""

    reference: str = ""
    """path.py, path.py:Object, task.toml, or a task_id."""


class NamesProgram(NamesReference):
    """Arguments of a tool that needs a program and its reference."""

    run_id: str = ""
    """Instead of reference; records the step."""
    program: str = ""
    """program_id, or path of a folder or file; default: the run's newest."""
    files: dict[str, str] = Field(default_factory=dict[str, str])
    """Or the sources, by path."""
    main: str = ""
    """Which of several files to compile."""


class JudgesProgram(NamesProgram):
    """Arguments of a tool that compares a program with its reference."""


class NamesSubject(JudgesProgram):
    """Arguments of a tool that is about the reference where no program is named, or REFERENCE is."""


class NamesContract(NamesReference):
    """Arguments that describe a reference whose task does not exist yet."""

    files: dict[str, str] = Field(default_factory=dict[str, str])
    """Sources by path, if not in the workspace; `reference` names one."""
    target: str = ""
    """cpu, cuda, cuda:sm_90; default: the server's."""
    inputs: str = ""
    """Input maker; default get_inputs."""
    contract: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Fields to set, e.g. {"rtol": 1e-4}; see stitch://contract."""
    allow_relaxed: bool = False
    """Let `contract` loosen fields; results say `relaxed`."""
