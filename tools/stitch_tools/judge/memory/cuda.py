"""The GPU's sanitizers: the built program under each tool of compute-sanitizer, in a process of its own."""

import base64
import json
import os
import re
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.compile.host_build import build_sanitizer_host
from stitch_tools.errors import EnvironmentMissingError, SandboxError
from stitch_tools.judge.memory.case import UNPOISONED, SanitizerCase
from stitch_tools.judge.memory.compute_sanitizer import find_compute_sanitizer
from stitch_tools.judge.memory.cuda_reports import Kernels, base_name, counted, cuda_findings
from stitch_tools.judge.memory.reports import Findings
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.device_lock import shared_device, shared_key
from stitch_tools.machine.isolation import BOOTSTRAP
from stitch_tools.models.sanitizer import SanitizerRun, SanitizerTool
from stitch_tools.run.tool_process import REPORTS, Execution, execute
from stitch_tools.storage.scratch import make_scratch

CUDA_TOOLS: tuple[SanitizerTool, ...] = ("memcheck", "racecheck", "initcheck", "synccheck")
_REPORT = f"{REPORTS}.xml"
_POISON = 0xFF
_KERNEL = re.compile(r"__global__\b[^;{}()]*?(?:__launch_bounds__\s*\([^)]*\)[^;{}()]*?)?\b(\w+)\s*\(")
_PYTHON_BUILD_LIMIT_S = 600.0
# Tensors of torch's pool lie side by side in one allocation: an overrun would stay inside it.
_PYTHON_ENV = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


@dataclass(frozen=True)
class _Command:
    """How the program is run without a tool."""

    words: tuple[str, ...]
    files: dict[str, str]
    env: dict[str, str]
    fds: tuple[int, ...]
    readable: tuple[Path, ...]
    writable: tuple[Path, ...] = ()


def own_kernels(trial: Trial) -> Kernels:
    """The program's own kernels: those that the assembler saw, else those that its sources define."""
    files = trial.program.files
    if trial.build is not None and trial.build.resources:
        names = frozenset(base_name(row.kernel) for row in trial.build.resources)
    else:
        texts = (trial.store.get(file.sha256).decode("utf-8", "replace") for file in files)
        names = frozenset(name for text in texts for name in _KERNEL.findall(text))
    return Kernels(names - {""}, tuple(file.path for file in files))


def run_cuda(case: SanitizerCase, tools: Sequence[SanitizerTool]) -> list[SanitizerRun]:
    """What the tools saw on one draw; a tool that could not say anything is `not_checked`."""
    trial = case.trial
    trial.say(f"running it under {', '.join(tools)}")
    try:
        sanitizer = find_compute_sanitizer((trial.session.interpreter.prefix,))
        kernels = own_kernels(trial)
        reason = "" if kernels.names else "the program has no kernels of its own"
        with ExitStack() as stack:
            native = trial.program.format == "native"
            python = None if native or reason else stack.enter_context(_python(case))
            if python is not None:
                # It builds itself once without a tool, which would slow the compiler down, too.
                first = _execute(trial, python, python.words, (), _PYTHON_BUILD_LIMIT_S, builds=True)
                reason = "" if first.done else f"before any tool: {first.why_not_done(_PYTHON_BUILD_LIMIT_S)}"
            if reason:
                return [case.not_checked(tool, reason) for tool in tools]
            runs: list[SanitizerRun] = []
            for tool in tools:
                command = python or _native(case, tool)
                # Names read from a ModelNew's source may miss one that a macro made: all is instrumented.
                watched = sorted(kernels.names) if native else ()
                words = (*sanitizer.command(tool, _REPORT, watched), *command.words)
                readable = (sanitizer.folder, sanitizer.path)
                execution = _execute(trial, command, words, readable, case.options.limit_s)
                runs.append(judged(case, tool, execution, kernels))
            return runs
    except (EnvironmentMissingError, SandboxError) as error:
        return [case.not_checked(tool, error.message) for tool in tools]


def judged(case: SanitizerCase, tool: SanitizerTool, execution: Execution, kernels: Kernels) -> SanitizerRun:
    """What one run under a tool says about the program; no record means clean where the tool counted none."""
    count = counted(execution.stdout)
    findings = cuda_findings(tool, execution.reports.get(_REPORT, ""), kernels) or Findings((), ())
    if execution.done and not findings.own and not findings.libraries and count != 0:
        # Nothing was seen, even where the program ran through.
        says = f"it counts {count} errors" if count else execution.last_words
        return case.not_checked(tool, f"compute-sanitizer wrote no report: {says}", execution.wall_s)
    return case.concluded(tool, findings, execution)


def _execute(
    trial: Trial,
    command: _Command,
    words: tuple[str, ...],
    readable: tuple[Path, ...],
    limit_s: float,
    *,
    builds: bool = False,
) -> Execution:
    # A program that compiles for minutes must not keep timings from the device as long.
    device = None if builds else shared_key(trial.task.target)
    with shared_device(device, purpose="looking for wrong uses of memory"):
        return execute(
            trial.session,
            words,
            files=command.files,
            env=command.env,
            fds=command.fds,
            readable=(*command.readable, *readable, Path("/etc/hosts")),  # "localhost" is looked up there
            writable=command.writable,
            limit_s=limit_s,
            loopback=True,  # the tool and what it loads into the program talk to each other over sockets
        )


def _native(case: SanitizerCase, tool: SanitizerTool) -> _Command:
    build = case.trial.build
    artifact = build.artifact if build is not None else None
    if build is None or artifact is None:
        raise EnvironmentMissingError("the program was not built")
    host = build_sanitizer_host("", case.options.cache_dir)
    poison = UNPOISONED if tool == "initcheck" else _POISON
    return _Command(
        words=(str(host), "job", "{0}", "{1}", "-1"),
        files={"job": case.host_job(artifact, build.libraries, poison=poison)},
        env={"LD_LIBRARY_PATH": _library_path(case.trial.session.interpreter.prefix)},
        fds=case.fds,
        readable=(host, Path(artifact), *map(Path, build.libraries)),
    )


def _library_path(prefix: Path) -> str:
    """LD_LIBRARY_PATH with the folders of torch's CUDA wheels.

    A program finds cuBLASLt and its kin by soname, because torch has loaded them; here no torch is there to.
    """
    folders = sorted(map(str, prefix.glob("lib/python3.*/*-packages/nvidia/*/lib")))
    return ":".join(filter(None, (os.environ.get("LD_LIBRARY_PATH"), *folders)))


@contextmanager
def _python(case: SanitizerCase) -> Generator[_Command]:
    trial, weights, inputs = case.trial, case.weights, case.inputs
    with make_scratch("sanitize") as root:
        program, extensions = root / "program", root / "extensions"
        trial.store.materialize(trial.program.files, program)
        extensions.mkdir()
        job = {
            "folder": str(program),
            "main": trial.program.main,
            "training": weights.training,
            "matmul_precision": trial.task.contract.matmul_precision,
            "conv_precision": trial.task.contract.conv_precision,
            "generator": base64.b64encode(weights.generator).decode("ascii"),
            "init": weights.init,
            "init_structure": weights.init_structure,
            "inputs": inputs.manifest,
            "structure": inputs.structure,
        }
        yield _Command(
            words=(trial.session.interpreter.path, str(BOOTSTRAP), "python_host", "job", "{0}", "{1}"),
            files={"job": json.dumps(job)},
            env={**_PYTHON_ENV, "TORCH_EXTENSIONS_DIR": str(extensions)},
            fds=(weights.fds[1], inputs.fds[0]),
            readable=(program,),
            writable=(extensions,),
        )
