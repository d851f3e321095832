"""The commands with which somebody else repeats a run or verifies what it gave.

They are read on other machines: files are named relative to the report and the reference's folder.
"""

import shlex

from stitch_mcp.report.run_facts import RunFacts
from stitch_planner.runs.run import OUTSIDE
from stitch_planner.runs.run_events import RunStarted
from stitch_tools.models.program import STITCHER
from stitch_tools.models.task import Contract, Task

_PROGRAM = "stitch-mcp"


def solve_command(task: Task, begun: RunStarted) -> str:
    """The `solve` that does the same again; "" where an agent called the steps itself."""
    if begun.coder == OUTSIDE:
        return ""
    reference = task.main if task.style == "kernelbench" else f"{task.main}:{task.entry}"
    parts = ["solve", reference, "--target", task.target]
    parts += ["--quick"] if begun.quick else []
    parts += ["--inputs", task.inputs] if task.inputs != "get_inputs" else []
    for name, value in (
        ("--coder", begun.coder if begun.coder != STITCHER else None),
        ("--model", begun.model or None),
        ("--planner", begun.planner if begun.planner != "none" else None),
        ("--rounds", begun.rounds),
        ("--search", begun.search if begun.search != "greedy" else None),
        ("--review", begun.review if begun.review != "none" else None),
        ("--min-speedup", begun.min_speedup),
        ("--threads", begun.threads),
        ("--require-sandbox", begun.require_sandbox),
    ):
        parts += [] if value is None else [name, f"{value:g}" if isinstance(value, float) else str(value)]
    for name in begun.policy.names:
        parts += ["--accept", name]
    for name, source in task.contract.sources.items():
        if source == "caller":
            parts += ["--set", f"{name}={contract_value(task.contract, name)}"]
    parts += ["--allow-relaxed"] if task.contract.relaxed else []
    return f"{_PROGRAM} {shlex.join(parts)}"


def contract_value(contract: Contract, name: str) -> str:
    """A field of the contract as task files and `--set` spell it."""
    value: object = getattr(contract.tolerance if name in ("rtol", "atol") else contract, name, "")
    if isinstance(value, tuple):
        return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] # of strings
    return f"{value:g}" if isinstance(value, float) else str(value)


def certificate_commands(run: RunFacts) -> tuple[tuple[str, str], ...]:
    """What each command shows, and the command; () without a certificate."""
    if run.state.certificate is None:
        return ()
    verify = f"{_PROGRAM} certify --verify {shlex.quote(run.state.certificate.file)}"
    return (
        ("shows that nothing in it is damaged, and no more than that", verify),
        ("builds, checks with fresh secret inputs and times the program again", f"{verify} --rerun"),
    )
