"""How a reference or program is started alone, in a fresh interpreter, for a profiler to watch."""

import base64
import json
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import stitch_tools
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.isolation import BOOTSTRAP
from stitch_tools.models.task import Task
from stitch_tools.run.session import TargetSession
from stitch_tools.run.tool_process import Execution, execute
from stitch_tools.storage.scratch import make_scratch
from stitch_tools.storage.store import Store

if TYPE_CHECKING:
    from stitch_tools.run.reference_server import ReferenceServer

Method = Literal["none", "nsys", "torch", "ncu"]
"""Who records: nobody (calls are timed), nsys, PyTorch's own profiler, or ncu, which gets one iteration."""
TABLES = "recording.sqlite"
_REPORT = "report.json"
_PACKAGE = Path(stitch_tools.__file__).parent


@dataclass(frozen=True)
class HostSetup:
    """A subject that can be started, again and again, each time in a process of its own."""

    session: TargetSession
    job: dict[str, object]
    folder: Path
    """Where recordings are written; removed with the setup."""
    fds: tuple[int, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    readable: tuple[Path, ...] = ()

    def words(self) -> tuple[str, ...]:
        """The command without a profiler."""
        numbers = tuple(f"{{{index}}}" for index in range(len(self.fds)))
        return (self.session.interpreter.path, str(BOOTSTRAP), "profile_host", "job", *numbers)


@dataclass(frozen=True)
class HostRun:
    """How one start ended."""

    execution: Execution
    report: dict[str, float]
    """The numbers that the host wrote; a claim of the process that the program runs in."""
    device: str = ""

    @property
    def latency_us(self) -> float | None:
        """Median of calls that nothing recorded; None where it was recorded."""
        return self.report.get("latency_us")


def run_host(
    setup: HostSetup,
    method: Method,
    *,
    limit_s: float,
    prefix: tuple[str, ...] = (),
    readable: tuple[Path, ...] = (),
    env: dict[str, str] | None = None,
    loopback: bool = False,
) -> HostRun:
    """Start the subject once.

    Args:
        setup: the subject.
        method: who records.
        limit_s: it is killed after so many seconds.
        prefix: the profiler's own words before the command.
        readable: what the profiler must read.
        env: variables that the profiler needs.
        loopback: whether the profiler talks to its target over sockets.

    Raises:
        SandboxError: the isolation could not be applied, or is too weak for `loopback`.
    """
    job = {**setup.job, "method": method, "tables": str(setup.folder / TABLES)}
    # CUDA's driver looks into /proc when it starts, which a confined process of its own sees only so.
    loopback = loopback or (setup.job["device"] == "cuda" and setup.session.sandbox_level == "full")
    execution = execute(
        setup.session,
        (*prefix, *setup.words()),
        files={"job": json.dumps(job)},
        env={**dict(setup.env), **(env or {})},
        fds=setup.fds,
        # A fresh interpreter lists our package's folder to find the worker's modules in it; "localhost" is
        # looked up in the hosts file.
        readable=(_PACKAGE, *setup.readable, *readable, *((Path("/etc/hosts"),) if loopback else ())),
        limit_s=limit_s,
        writable=(setup.folder,),
        loopback=loopback,
    )
    return _read(execution)


@dataclass(frozen=True)
class HostUnderTool:
    """Runs one iteration of a subject behind the words of ncu, as often as it is asked to."""

    setup: HostSetup

    def __call__(self, words: Sequence[str], *, readable: Sequence[Path], limit_s: float) -> Execution:
        """How the run ended, with the files that the tool wrote as reports.

        Raises:
            SandboxError: ncu does not work at this isolation level.
        """
        run = run_host(
            self.setup,
            "ncu",
            limit_s=limit_s,
            prefix=tuple(words),
            readable=tuple(readable),
            loopback=True,
        )
        return run.execution


def _read(execution: Execution) -> HostRun:
    try:
        facts = json.loads(execution.reports.get(_REPORT, "{}"))
        numbers = {
            str(name): float(value)
            for name, value in facts.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        return HostRun(execution, numbers, str(facts.get("device", ""))[:100])
    except (ValueError, AttributeError):
        return HostRun(execution, {})


@contextmanager
def reference_setup(session: TargetSession, task: Task, store: Store) -> Generator[HostSetup]:
    """The task's reference, ready to be started."""
    contract = task.contract
    with make_scratch("profile") as root:
        files, recordings = root / "task", root / "recordings"
        recordings.mkdir()
        store.materialize(task.files, files, "TMPDIR")
        source = {
            "folder": str(files),
            "main": task.main,
            "entry": task.entry,
            "inputs": task.inputs,
            "init_inputs": task.init_inputs,
            "search_path": list(task.search_path),
            "mode": contract.named_mode,
            "device": task.target.partition(":")[0],
            "keep_structure": contract.input_structure == "kept",
        }
        job: dict[str, object] = {
            **_common(task),
            "kind": "reference",
            "source": source,
            "weights_seed": secrets.randbits(31),
            "input_seed": secrets.randbits(31),
        }
        readable = (files, *map(Path, task.search_path))
        yield HostSetup(session, job, recordings, readable=readable)


def _common(task: Task) -> dict[str, object]:
    return {
        "device": task.target.partition(":")[0],
        "matmul_precision": task.contract.matmul_precision,
        "conv_precision": task.contract.conv_precision,
    }


@contextmanager
def program_setup(trial: Trial, reference: "ReferenceServer") -> Generator[HostSetup]:
    """The trial's program with fresh weights and one draw of the task's own inputs, ready to be started.

    Raises:
        TaskError: the reference itself fails.
    """
    reference.revive()
    weights = reference.set_weights(on_host=True)
    try:
        inputs = reference.make_draw("own-1", on_host=True)
        try:
            with make_scratch("profile") as root:
                recordings = root / "recordings"
                recordings.mkdir()
                job: dict[str, object] = {
                    **_common(trial.task),
                    "inputs": inputs.manifest,
                    "structure": inputs.structure,
                    "training": weights.training,
                }
                setup = HostSetup(trial.session, job, recordings)
                if trial.program.format == "native":
                    fds = weights.fds[0], inputs.fds[0]
                    named = {"parameters": weights.parameters}
                    yield _native(replace(setup, fds=fds, job={**job, **named}), trial)
                else:
                    named = {
                        "generator": base64.b64encode(weights.generator).decode("ascii"),
                        "init": weights.init,
                        "init_structure": weights.init_structure,
                    }
                    fds = weights.fds[1], inputs.fds[0]
                    yield _python(replace(setup, fds=fds, job={**job, **named}), trial, root)
        finally:
            inputs.close()
    finally:
        weights.close()


def _native(setup: HostSetup, trial: Trial) -> HostSetup:
    build = trial.build
    artifact = build.artifact if build is not None else None
    if build is None or artifact is None:
        raise ValueError("a native program is profiled after it was built")
    facts: dict[str, object] = {
        "kind": "native",
        "library": artifact,
        "libraries": list(build.libraries),
        "state": list(trial.updated),
        "threads": trial.session.threads,
    }
    readable = (Path(artifact), *map(Path, build.libraries))
    return replace(setup, job={**setup.job, **facts}, readable=readable)


def _python(setup: HostSetup, trial: Trial, root: Path) -> HostSetup:
    program = root / "program"
    trial.store.materialize(trial.program.files, program)
    # In the folder that may be written: a ModelNew builds its extensions at its first start, which nobody
    # records, and finds them there at the next.
    extensions = setup.folder / "extensions"
    extensions.mkdir()
    facts: dict[str, object] = {"kind": "python", "folder": str(program), "main": trial.program.main}
    env = (("TORCH_EXTENSIONS_DIR", str(extensions)),)
    return replace(setup, job={**setup.job, **facts}, readable=(program,), env=env)
