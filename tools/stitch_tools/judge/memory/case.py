"""A program and one draw of its task, as the sanitizers of both devices take them."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.errors import TaskError, WorkerError
from stitch_tools.judge.memory.reports import Findings
from stitch_tools.judge.trial import Trial
from stitch_tools.models.sanitizer import SanitizerRun, SanitizerTool
from stitch_tools.protocol.memory import ITEM_BYTES, PackEntry
from stitch_tools.protocol.messages_reference import WeightsMade
from stitch_tools.run.reference_server import DrawUnavailable, Inputs, ReferenceServer
from stitch_tools.run.tool_process import Execution

OWN, SMALLER = "own-1", "batch-probe"
UNPOISONED = -1
# DLPack's codes of the kinds of numbers; the rest of a type's name is its size.
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
_FP8_CODES = {"float8_e4m3fn": 10, "float8_e5m2": 12}
_CPU, _CUDA = 1, 2


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
    weights: WeightsMade
    inputs: Inputs

    @property
    def fds(self) -> tuple[int, int]:
        """The packs of weights and inputs."""
        return self.weights.fds[0], self.inputs.fds[0]

    def not_checked(self, tool: SanitizerTool, reason: str, wall_s: float | None = None) -> SanitizerRun:
        """The run of a tool that says nothing about the program on this draw."""
        return not_checked(tool, reason).model_copy(update={"inputs": self.inputs.kind, "wall_s": wall_s})

    def not_done(
        self, tool: SanitizerTool, execution: Execution, wall_s: float | None = None
    ) -> SanitizerRun:
        """The run of a tool under which the program did not run through."""
        run = self.not_checked(tool, execution.why_not_done(self.options.limit_s), wall_s)
        return run.model_copy(update={"too_slow": execution.timed_out})

    def concluded(self, tool: SanitizerTool, found: Findings, execution: Execution) -> SanitizerRun:
        """The run of a tool whose report was read: findings count also where the program did not survive."""
        if not found.own and not execution.done:
            return self.not_done(tool, execution, execution.wall_s)
        return SanitizerRun(
            tool=tool,
            status="findings" if found.own else "clean",
            findings=found.own,
            library_findings=found.libraries,
            inputs=self.inputs.kind,
            wall_s=execution.wall_s,
        )

    def host_job(
        self, program: str, libraries: Sequence[str], *, poison: int, threads: int = 0, calls: int = 1
    ) -> str:
        """The job that native/src/sanitizer_host.cpp reads, a fact a line.

        Args:
            program: path of the built library.
            libraries: loaded before the program, with their names visible to it.
            poison: byte that outputs and workspace hold before a call, or UNPOISONED.
            threads: for stitch_init.
            calls: forwards, each in memory of its own.

        Raises:
            WorkerError: a path or name that a line cannot hold.
        """
        weights = {entry["name"]: entry for entry in self.weights.parameters}
        lines = [
            *(f"library {path}" for path in libraries),
            f"program {program}",
            f"device {_CUDA if self.trial.on_gpu else _CPU}",
            f"threads {threads}",
            f"poison {poison}",
            f"calls {calls}",
            *(_tensor("param", entry) for entry in weights.values()),
            *(_tensor("input", entry) for entry in self.inputs.manifest),
            *(_tensor("state", weights[name]) for name in self.trial.updated),
        ]
        if any("\n" in line for line in lines):
            raise WorkerError("a tensor's name or a path holds a line break", hint="rename it")
        return "\n".join(lines) + "\n"


def _tensor(kind: str, entry: PackEntry) -> str:
    dtype, shape, stride = entry["dtype"], entry["shape"], entry["stride"]
    code = _FP8_CODES[dtype] if dtype in _FP8_CODES else _CODES[dtype.rstrip("0123456789")]
    bits = 8 * ITEM_BYTES[dtype]
    numbers = [entry["offset"], entry["nbytes"], code, bits, len(shape), *shape, *stride]
    return f"{kind} {' '.join(map(str, numbers))} {entry['name']}"


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
