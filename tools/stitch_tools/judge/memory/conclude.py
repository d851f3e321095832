"""From a tool's report and the end of its process to a SanitizerRun."""

from stitch_tools.judge.memory.reports import Findings
from stitch_tools.models.sanitizer import SanitizerRun, SanitizerTool
from stitch_tools.run.tool_process import Execution


def not_checked(
    tool: SanitizerTool, reason: str, kind: str = "", wall_s: float | None = None
) -> SanitizerRun:
    """The run of a tool that says nothing about the program."""
    return SanitizerRun(tool=tool, status="not_checked", reason=reason[:600], inputs=kind, wall_s=wall_s)


def concluded(
    tool: SanitizerTool, found: Findings, execution: Execution, kind: str, limit_s: float
) -> SanitizerRun:
    """The run of a tool whose report was read: findings count also where the program did not survive them."""
    if not found.own and not execution.done:
        return not_checked(tool, execution.why_not_done(limit_s), kind, execution.wall_s)
    return SanitizerRun(
        tool=tool,
        status="findings" if found.own else "clean",
        findings=found.own,
        library_findings=found.libraries,
        inputs=kind,
        wall_s=execution.wall_s,
    )
