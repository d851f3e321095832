"""`inspect_environment`: what this machine can do, and what it lacks."""

from collections.abc import Callable
from typing import ClassVar

from pydantic import Field

from stitch_mcp.config import Config
from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tool import SlowRequest, Tool, ToolAnswer
from stitch_tools.models.remedy import Remedy

_OF_CUDA = (
    *("GPU", "nvcc", "nvcc host compiler", "cuBLASLt", "torch and driver", "data plane"),
    *("ncu", "nsys", "GPU counters"),
)
"""Items without which CPU programs lack nothing."""


class InspectEnvironment(SlowRequest):
    """Arguments of inspect_environment."""


class EnvironmentAnswer(ToolAnswer):
    """State of this machine."""

    NEVER_SET: ClassVar[tuple[str, ...]] = ("run_id", "artifact")

    can_solve_cpu: bool | None = None
    """Whether C++ programs can be built, checked, timed."""
    can_build_cuda: bool | None = None
    can_measure_cuda: bool | None = None
    workspace: str | None = None
    """Folder of relative paths; others are refused."""
    found: dict[str, str] = Field(default_factory=dict[str, str])
    """CPU, GPU, compilers, torch, isolation."""
    fixes: tuple[str, ...] = ()
    """What is missing, each with its fix."""


def inspect(request: InspectEnvironment, work: JobContext) -> EnvironmentAnswer:
    """The state of this machine."""
    return _examined(work.config, work.say)


def inspect_without_job(request: InspectEnvironment, server_context: ServerContext) -> EnvironmentAnswer:
    """The same for a workspace that cannot be written; the answer reports that, too."""
    return _examined(server_context.config, None)


def _examined(config: Config, say: Callable[[str], None] | None) -> EnvironmentAnswer:
    from stitch_mcp.doctor import examine

    report = examine(config, say)
    ready = "cpu programs" if report.can_solve_cpu else "nothing"
    ready = "cpu and cuda programs" if report.can_measure_cuda else ready
    built = (
        "; cuda programs are built and stay unmeasured"
        if report.can_build_cuda and not report.can_measure_cuda
        else ""
    )
    why = "open a run for a PyTorch file of the workspace"
    step = Remedy(tool="analyze_reference", arguments={"reference": "PATH.py"}, why=why)
    return EnvironmentAnswer(
        message=f"{ready} can be checked and timed here{built}",
        can_solve_cpu=report.can_solve_cpu,
        can_build_cuda=report.can_build_cuda,
        can_measure_cuda=report.can_measure_cuda,
        workspace=str(config.workspace),
        found={item.name: item.detail for item in report.items if item.status in ("ok", "warning")},
        fixes=tuple(
            f"{item.name}: {item.detail}; {item.fix}"
            for item in report.items
            if item.status != "ok" and item.fix and not (config.target == "cpu" and item.name in _OF_CUDA)
        ),
        next_steps=(step,),
    )


TOOL = Tool(
    name="inspect_environment",
    title="Inspect the environment",
    description=(
        "Shows what this machine can build, check and time, and the fix for what it lacks. "
        "Call it first, or when a tool reports `environment`. About 5 s."
    ),
    request=InspectEnvironment,
    answer=EnvironmentAnswer,
    work=inspect,
    without_job=inspect_without_job,
    read_only=True,
    reuse=False,
    toolset="read",
)
