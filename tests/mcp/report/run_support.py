"""Runs made by hand: every fact is a real one in a real store, but nothing was built or timed."""

from pathlib import Path

from stitch_planner.opening import begin_run
from stitch_planner.runs.recorder import record_bench, record_build, record_check, record_program
from stitch_planner.runs.run import Run, Workspace
from stitch_planner.workbench import Workbench
from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import Contract, Task, Tolerance
from stitch_tools.models.verdict import (
    Bench,
    BenchOutcome,
    Check,
    CheckStatus,
    DrawResult,
    Finding,
    OutputError,
    Ratio,
    Timing,
)
from stitch_tools.run.interpreter import Interpreter

PYTHON = Interpreter("python3", "3.11.0", "2.13.0", "own")
REFERENCE = "class Model:\n    '''<script>alert(\"reference\")</script>'''\n"


def open_run(root: Path, *, coder: str = "stitcher") -> Run:
    """A run that has only begun; the caller closes it."""
    workspace = Workspace(root)
    contract = Contract(tolerance=Tolerance(rtol=1e-4, atol=1e-5), sources={"rtol": "caller"})
    files = workspace.store.put_files({"model.py": REFERENCE.encode()})
    task = Task(name="model", files=files, main="model.py", contract=contract)
    return begin_run(Workbench(workspace, PYTHON), task, coder=coder, quick=True)


def add_program(
    run: Run,
    text: str,
    *,
    author: str = "stitcher",
    parent: Program | None = None,
    notes: tuple[str, ...] = (),
    files: dict[str, str] | None = None,
) -> Program:
    """One more program, written down and not looked at."""
    sources = {"main.cpp": text, **(files or {})}
    program = Program(
        format="native",
        target="cpu",
        files=run.store.put_files({path: source.encode() for path, source in sources.items()}),
        main="main.cpp",
        author=author,
        parent_id=parent.program_id if parent else None,
    )
    record_program(run, program, notes=notes)
    return program


def add_build(run: Run, program: Program, **fields: object) -> None:
    """A build of it, successful unless `fields` says otherwise."""
    build = Build(program_id=program.program_id, ok=True, toolchain="cpp", compiler="g++ 12")
    record_build(run, program, build.model_copy(update=fields))


def add_check(
    run: Run,
    program: Program,
    *,
    status: CheckStatus = "accepted",
    draws: tuple[DrawResult, ...] | None = None,
    findings: tuple[Finding, ...] = (),
    message: str = "",
) -> None:
    """A check of it."""
    equal = OutputError(output="", max_error=1e-7, rms_error=5e-8, reference_error=1e-7, bound=2e-5)
    check = Check(
        program_id=program.program_id,
        task_id=run.state.started.task_id if run.state.started else "",
        status=status,
        findings=findings,
        draws=(DrawResult(draw="own-1", ok=True, outputs=(equal,)),) if draws is None else draws,
        not_checked=("gradients: programs are forward only",),
        message=message,
    )
    record_check(run, program, check)


def add_bench(
    run: Run,
    program: Program,
    speedups: dict[str, tuple[float, float, float]],
    *,
    outcome: BenchOutcome = "faster",
    disturbed: bool = False,
    message: str = "",
) -> None:
    """A timing of it: for each baseline speed-up, lower and upper end."""
    ratios = tuple(
        Ratio(baseline=name, speedup=middle, low=low, high=high, outcome=outcome)
        for name, (middle, low, high) in speedups.items()
    )
    names = ("program", *speedups)
    bench = Bench(
        program_id=program.program_id,
        task_id=run.state.started.task_id if run.state.started else "",
        outcome=outcome,
        timings=tuple(
            Timing(name=name, latency_us=10.0, latency_spread_us=0.25, throughput_us=9.0, n=20)
            for name in names
        ),
        ratios=ratios,
        device="a CPU",
        disturbed=disturbed,
        message=message,
    )
    record_bench(run, program, bench)
