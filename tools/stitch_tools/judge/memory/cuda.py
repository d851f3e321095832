"""The GPU's sanitizers: the built program under each tool of compute-sanitizer, in a process of its own."""

import base64
import json
import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.compile.host_build import build_sanitizer_host
from stitch_tools.errors import EnvironmentMissingError, SandboxError
from stitch_tools.judge.memory.compute_sanitizer import ComputeSanitizer, find_compute_sanitizer
from stitch_tools.judge.memory.conclude import concluded, not_checked
from stitch_tools.judge.memory.cuda_reports import Kernels, base_name, counted, cuda_findings
from stitch_tools.judge.memory.job import UNPOISONED, host_job
from stitch_tools.judge.memory.material import Material
from stitch_tools.judge.memory.reports import Findings
from stitch_tools.machine.isolation import BOOTSTRAP
from stitch_tools.models import Build, Program, Task
from stitch_tools.models.sanitizer import SanitizerRun, SanitizerTool
from stitch_tools.run.session import TargetSession
from stitch_tools.run.tool_process import REPORTS, Execution, execute
from stitch_tools.storage.scratch import scratch_folder
from stitch_tools.storage.store import Store

CUDA_TOOLS: tuple[SanitizerTool, ...] = ("memcheck", "racecheck", "initcheck", "synccheck")
_REPORT = f"{REPORTS}.xml"
_POISON = 0xFF
_KERNEL = re.compile(r"__global__\b[^;{}()]*?(?:__launch_bounds__\s*\([^)]*\)[^;{}()]*?)?\b(\w+)\s*\(")
_PYTHON_BUILD_LIMIT_S = 600.0
# Tensors of torch's pool lie side by side in one allocation: an overrun would stay inside it.
_PYTHON_ENV = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


@dataclass(frozen=True)
class CudaBench:
    """What the runs of one program share."""

    task: Task
    program: Program
    build: Build | None
    session: TargetSession
    store: Store
    cache_dir: Path | None
    limit_s: float

    @property
    def kernels(self) -> Kernels:
        """The program's own kernels: those that the assembler saw, else those that its sources define."""
        files = tuple(file.path for file in self.program.files)
        if self.build is not None and self.build.resources:
            names = frozenset(base_name(row.kernel) for row in self.build.resources)
        else:
            texts = (self.store.get(file.sha256).decode("utf-8", "replace") for file in self.program.files)
            names = frozenset(name for text in texts for name in _KERNEL.findall(text))
        return Kernels(names - {""}, files)


@dataclass(frozen=True)
class _Command:
    """How the program is run without a tool."""

    words: tuple[str, ...]
    files: dict[str, str]
    env: dict[str, str]
    fds: tuple[int, ...]
    readable: tuple[Path, ...]
    writable: tuple[Path, ...] = ()


def run_cuda(
    bench: CudaBench, tools: Sequence[SanitizerTool], material: Material
) -> dict[SanitizerTool, SanitizerRun]:
    """What the tools saw on one draw; a tool that could not say anything is `not_checked`."""
    kind = material.kind
    try:
        tool = find_compute_sanitizer((bench.session.interpreter.prefix,))
        kernels = bench.kernels
        if not kernels.names:
            return {name: not_checked(name, "the program has no kernels of its own", kind) for name in tools}
        if bench.program.format == "native":
            return {
                name: _run_tool(bench, tool, name, _native(bench, material, name), kernels, kind)
                for name in tools
            }
        return _run_python(bench, tool, tools, material, kernels)
    except (EnvironmentMissingError, SandboxError) as error:
        return {name: not_checked(name, error.message, kind) for name in tools}


def _run_tool(
    bench: CudaBench,
    sanitizer: ComputeSanitizer,
    tool: SanitizerTool,
    command: _Command,
    kernels: Kernels,
    kind: str,
) -> SanitizerRun:
    # Names read from a ModelNew's source may miss one that a macro made: then everything is instrumented.
    watched = sorted(kernels.names) if bench.program.format == "native" else ()
    words = (*sanitizer.command(tool, _REPORT, watched), *command.words)
    execution = _execute(bench, command, words, (sanitizer.folder, sanitizer.path), bench.limit_s)
    return judged(tool, execution, kernels, kind, bench.limit_s)


def judged(
    tool: SanitizerTool, execution: Execution, kernels: Kernels, kind: str, limit_s: float
) -> SanitizerRun:
    """What one run under a tool says about the program; no record means clean where the tool counted none."""
    report, count = (
        cuda_findings(tool, execution.reports.get(_REPORT, ""), kernels),
        counted(execution.stdout),
    )
    found = report or Findings((), ())
    if execution.done and not found.own and not found.libraries and count != 0:
        # Nothing was seen, even where the program ran through.
        says = f"it counts {count} errors" if count else execution.last_words
        return not_checked(tool, f"compute-sanitizer wrote no report: {says}", kind, execution.wall_s)
    return concluded(tool, found, execution, kind, limit_s)


def _execute(
    bench: CudaBench, command: _Command, words: tuple[str, ...], readable: tuple[Path, ...], limit_s: float
) -> Execution:
    return execute(
        bench.session,
        words,
        files=command.files,
        env=command.env,
        fds=command.fds,
        readable=(*command.readable, *readable, Path("/etc/hosts")),  # "localhost" is looked up there
        writable=command.writable,
        limit_s=limit_s,
        loopback=True,  # the tool and what it loads into the program talk to each other over sockets
    )


def _native(bench: CudaBench, material: Material, tool: SanitizerTool) -> _Command:
    build = bench.build
    artifact = build.artifact if build is not None else None
    if build is None or artifact is None:
        raise EnvironmentMissingError("the program was not built")
    host = build_sanitizer_host("", bench.cache_dir)
    job = host_job(
        artifact,
        device="cuda",
        libraries=build.libraries,
        parameters=material.weights.parameters,
        inputs=material.inputs.manifest,
        state=material.updated,
        poison=UNPOISONED if tool == "initcheck" else _POISON,
    )
    return _Command(
        words=(str(host), "job", "{0}", "{1}", "-1"),
        files={"job": job},
        env={"LD_LIBRARY_PATH": _library_path(bench.session.interpreter.prefix)},
        fds=material.fds,
        readable=(host, Path(artifact), *map(Path, build.libraries)),
    )


def _library_path(prefix: Path) -> str:
    """LD_LIBRARY_PATH with the folders of torch's CUDA wheels.

    A program finds cuBLASLt and its kin by soname, because torch has loaded them; here no torch is there to.
    """
    folders = sorted(map(str, prefix.glob("lib/python3.*/*-packages/nvidia/*/lib")))
    return ":".join(filter(None, (os.environ.get("LD_LIBRARY_PATH"), *folders)))


def _run_python(
    bench: CudaBench,
    sanitizer: ComputeSanitizer,
    tools: Sequence[SanitizerTool],
    material: Material,
    kernels: Kernels,
) -> dict[SanitizerTool, SanitizerRun]:
    """A ModelNew under each tool, after one run without a tool in which it builds itself."""
    with _python(bench, material) as command:
        first = _execute(bench, command, command.words, (), _PYTHON_BUILD_LIMIT_S)
        if not first.done:
            reason = f"before any tool: {first.why_not_done(_PYTHON_BUILD_LIMIT_S)}"
            return {tool: not_checked(tool, reason, material.kind) for tool in tools}
        return {tool: _run_tool(bench, sanitizer, tool, command, kernels, material.kind) for tool in tools}


@contextmanager
def _python(bench: CudaBench, material: Material) -> Generator[_Command]:
    contract = bench.task.contract
    with scratch_folder("sanitize") as root:
        program, extensions = root / "program", root / "extensions"
        bench.store.materialize(bench.program.files, program)
        extensions.mkdir()
        job = {
            "folder": str(program),
            "main": bench.program.main,
            "training": material.weights.training,
            "matmul_precision": contract.matmul_precision,
            "conv_precision": contract.conv_precision,
            "generator": base64.b64encode(material.weights.generator).decode("ascii"),
            "init": material.weights.init,
            "init_structure": material.weights.init_structure,
            "inputs": material.inputs.manifest,
            "structure": material.inputs.structure,
        }
        yield _Command(
            words=(bench.session.interpreter.path, str(BOOTSTRAP), "python_host", "job", "{0}", "{1}"),
            files={"job": json.dumps(job)},
            env={**_PYTHON_ENV, "TORCH_EXTENSIONS_DIR": str(extensions)},
            fds=(material.weights.fds[1], material.inputs.fds[0]),
            readable=(program,),
            writable=(extensions,),
        )
