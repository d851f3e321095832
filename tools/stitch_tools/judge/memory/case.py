"""A program and one draw of its task, as the sanitizers of both devices take them."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.errors import TaskError
from stitch_tools.judge.memory.reports import Findings
from stitch_tools.judge.trial import Trial
from stitch_tools.models.sanitizer import SanitizerRun, SanitizerTool
from stitch_tools.run.reference_server import DrawUnavailable, Inputs, ReferenceServer, WeightSet
from stitch_tools.run.tool_process import Execution

OWN, SMALLER = "own-1", "batch-probe"


@dataclass(frozen=True)
class SanitizeOptions:
    """Which tools run, and how long each may take."""

    tools: Sequence[SanitizerTool] = ()
    """() is all of the device's."""
    limit_s: float = 120.0
    """Seconds of one draw under one tool, however busy the machine is; what takes longer is not checked."""
    cache_dir: Path | None = None
    """Cache folder; None is the user's."""


@dataclass(frozen=True)
class SanitizerCase:
    """What all runs of one program on one draw share. Weights and inputs belong to `drawn_case`."""

    trial: Trial
    options: SanitizeOptions
    weights: WeightSet
    inputs: Inputs

    @property
    def fds(self) -> tuple[int, int]:
        """The packs of weights and inputs."""
        return self.weights.fds[0], self.inputs.fds[0]

    def not_checked(self, tool: SanitizerTool, reason: str, wall_s: float | None = None) -> SanitizerRun:
        """The run of a tool that says nothing about the program on this draw."""
        return not_checked(tool, reason).model_copy(update={"inputs": self.inputs.kind, "wall_s": wall_s})

    def concluded(self, tool: SanitizerTool, found: Findings, execution: Execution) -> SanitizerRun:
        """The run of a tool whose report was read: findings count also where the program did not survive."""
        if not found.own and not execution.done:
            return self.not_checked(tool, execution.why_not_done(self.options.limit_s), execution.wall_s)
        return SanitizerRun(
            tool=tool,
            status="findings" if found.own else "clean",
            findings=found.own,
            library_findings=found.libraries,
            inputs=self.inputs.kind,
            wall_s=execution.wall_s,
        )


def not_checked(tool: SanitizerTool, reason: str) -> SanitizerRun:
    """The run of a tool that says nothing about the program."""
    return SanitizerRun(tool=tool, status="not_checked", reason=reason[:600])


@contextmanager
def drawn_case(
    reference: ReferenceServer, trial: Trial, options: SanitizeOptions, kind: str
) -> Generator[SanitizerCase | None]:
    """Fresh weights and a draw of `kind`, which hosts of tools map; None where the task has no such draw.

    Raises:
        TaskError: the reference itself fails.
    """
    reference.revive()
    weights = reference.set_weights(on_host=True)
    try:
        try:
            inputs = reference.make_draw(kind, on_host=True)
        except (DrawUnavailable, TaskError):
            if kind == OWN:
                raise
            yield None
            return
        try:
            yield SanitizerCase(trial, options, weights, inputs)
        finally:
            inputs.close()
    finally:
        weights.close()
