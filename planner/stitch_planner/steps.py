"""The steps of a run. Each returns nothing: what it found lies in the store, and its event in the log."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from stitch_planner.certify import certify_run
from stitch_planner.plan import Plan, make_plan
from stitch_planner.runs.run import Run, started
from stitch_planner.runs.run_events import (
    BenchFinished,
    BuildFinished,
    CheckFinished,
    Decision,
    DecisionMade,
    GraphCaptured,
    PlanMade,
    ProgramWritten,
    ReferenceObserved,
    RunFinished,
)
from stitch_planner.sentences import explain
from stitch_planner.stitcher import refuse_updates, stitch
from stitch_tools.compile import compile_program
from stitch_tools.errors import StoreError
from stitch_tools.graph import capture_graph
from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.memory import (
    SanitizeOptions,
    apply_sanitizers,
    sanitize_program,
    skipped_sanitizers,
)
from stitch_tools.judge.timing import BenchOptions, benchmark_program
from stitch_tools.machine.devices import Target
from stitch_tools.models import (
    STITCHER,
    Bench,
    Build,
    Ceilings,
    Check,
    Fact,
    Graph,
    Program,
    ReferenceFacts,
    SandboxLevel,
    Task,
)
from stitch_tools.run.ceilings import measure_ceilings
from stitch_tools.run.interpreter import Interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession

FactT = TypeVar("FactT", bound=Fact)
SOURCES_FOLDER = Path("rounds", "000", "program")
"""Where a run lays out its program for people, in its folder."""


@dataclass
class Work:
    """What the steps of one run share: its facts by name, and one warm session, begun when first needed."""

    run: Run
    task: Task
    target: Target
    """The task's device, and whether it is here."""
    interpreter: Interpreter
    emit: Callable[[str], None]
    require_sandbox: SandboxLevel | None = None
    threads: int | None = None
    cache_dir: Path | None = None
    build_time_limit_s: float = 600.0
    stop: threading.Event | None = None
    """Once set, a step neither waits for the device nor times on; the step is not done then."""
    _session: TargetSession | None = dataclasses.field(default=None, init=False)
    _reference: ReferenceServer | None = dataclasses.field(default=None, init=False)
    _cleanup: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    @property
    def session(self) -> TargetSession:
        """The target interpreter's session."""
        if self._session is None:
            self.emit(f"starting {self.interpreter.path} (torch {self.interpreter.torch_version})")
            self._session = self._cleanup.enter_context(
                TargetSession(self.interpreter, require_sandbox=self.require_sandbox, threads=self.threads)
            )
        return self._session

    @property
    def reference(self) -> ReferenceServer:
        """The reference in a server of its own; where the task's device is not here, it runs on the CPU."""
        if self._reference is None:
            seen = self.task if self.target.available else self.task.model_copy(update={"target": "cpu"})
            self._reference = self._cleanup.enter_context(ReferenceServer(self.session, seen, self.run.store))
        return self._reference

    @property
    def facts(self) -> ReferenceFacts:
        """What was observed of the reference."""
        return self._stored(self.run.state.reference, "facts", ReferenceFacts)

    @property
    def graph(self) -> Graph:
        """The captured graph."""
        return self._stored(self.run.state.graph, "graph", Graph)

    @property
    def ceilings(self) -> Ceilings | None:
        """The device's ceilings, None where the device is not here."""
        event = self.run.state.graph
        return None if event is None or event.ceilings is None else self._stored(event, "ceilings", Ceilings)

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self._stored(self.run.state.plan, "plan", Plan)

    @property
    def program(self) -> Program:
        """The candidate."""
        return self._stored(self.run.state.program, "program", Program)

    @property
    def build(self) -> Build | None:
        """The build, its artifact made again where the cache dropped it; None for a Python program."""
        event = self.run.state.build
        if event is None or event.build is None:
            return None
        recorded = self._stored(event, "build", Build)
        if recorded.ok and recorded.artifact and not Path(recorded.artifact).exists():
            return self.compile()
        return recorded

    def compile(self) -> Build:
        """The candidate compiled, or taken from the cache."""
        return compile_program(
            self.program,
            self.run.store,
            cache_dir=self.cache_dir,
            time_limit_s=self.build_time_limit_s,
            emit=self.emit,
            prefixes=(self.interpreter.prefix,),
            require_sandbox=self.require_sandbox,
        )

    @property
    def check(self) -> Check:
        """The candidate's check."""
        return self._stored(self.run.state.check, "check", Check)

    @property
    def bench(self) -> Bench:
        """The candidate's timing."""
        return self._stored(self.run.state.bench, "bench", Bench)

    def _stored(self, event: Fact | None, field: str, kind: type[FactT]) -> FactT:
        if event is None:
            raise StoreError(
                f"the run has no {kind.__name__} yet", hint="this is a fault of ours; solve again"
            )
        return self.run.store.get_fact(getattr(event, field), kind)


def observe(work: Work) -> None:
    """Run the reference once and keep what was seen."""
    work.emit("observing the reference")
    facts = work.reference.observe()
    for warning in facts.warnings:
        work.emit(f"warning: {warning}")
    work.run.record(ReferenceObserved(facts=work.run.store.put_fact(facts), warnings=facts.warnings))


def capture(work: Work) -> None:
    """Measure the device, unless it is not here, and capture the graph."""
    refuse_updates(work.task, work.facts)
    store = work.run.store
    ceilings = None
    if work.target.available:
        ceilings = measure_ceilings(
            work.task.target,
            cache_dir=work.cache_dir,
            session=work.session,
            emit=work.emit,
            stop=work.stop,
        )
    work.emit("capturing the graph")
    graph = capture_graph(work.reference.child, work.task, work.facts, ceilings)
    work.run.record(
        GraphCaptured(
            graph=store.put_fact(graph),
            ceilings=store.put_fact(ceilings) if ceilings else None,
            source=graph.source,
        )
    )


def plan(work: Work) -> None:
    """Partition the graph into steps with predicted times."""
    made = make_plan(work.graph, work.facts, work.task, work.ceilings)
    work.emit(f"planned {len(made.steps)} steps")
    work.run.record(PlanMade(plan=work.run.store.put_fact(made), steps=len(made.steps)))


def write_program(work: Work) -> None:
    """Turn the plan into source files, also laid out for people below `rounds/000/program`."""
    store = work.run.store
    sources = {file.path: store.get(file.sha256) for file in work.task.files}
    stitched = stitch(work.task, work.facts, work.graph, work.plan, sources)
    program = Program(
        format=stitched.format,
        target=work.task.target,
        files=store.put_files(stitched.files),
        main=stitched.main,
        author=STITCHER,
    )
    folder = work.run.folder / SOURCES_FOLDER
    store.materialize(program.files, folder)
    work.emit(f"wrote {len(program.files)} files: {folder}")
    work.run.record(
        ProgramWritten(program=store.put_fact(program), program_id=program.program_id, notes=stitched.notes)
    )


def build(work: Work) -> None:
    """Compile the program; one in Python builds itself when it is loaded."""
    program = work.program
    if program.format != "native":
        work.run.record(BuildFinished(program_id=program.program_id, build=None, ok=True))
        return
    work.emit("compiling")
    built = work.compile()
    if not built.ok:
        for line in built.diagnostics[:5]:
            work.emit(f"{line.file}:{line.line}: {line.severity}: {line.message}")
    work.run.record(
        BuildFinished(program_id=built.program_id, build=work.run.store.put_fact(built), ok=built.ok)
    )


def check(work: Work) -> None:
    """Compare the program with the reference."""
    work.emit("checking against the reference")
    checked = check_program(
        work.task,
        work.program,
        work.build,
        session=work.session,
        store=work.run.store,
        facts=work.facts,
        options=CheckOptions(cache_dir=work.cache_dir),
        emit=work.emit,
        reference=work.reference if work.target.available else None,
    )
    if checked.status == "accepted":
        checked = _sanitized(work, checked)
    # Why a program is not accepted stands in the result: once is enough.
    agreed = f" ({checked.message})" if checked.status == "accepted" else ""
    work.emit(f"check: {checked.status}{agreed}")
    work.run.record(
        CheckFinished(
            program_id=checked.program_id, check=work.run.store.put_fact(checked), status=checked.status
        )
    )


def _sanitized(work: Work, checked: Check) -> Check:
    """The check with what the sanitizers saw; a quick run leaves them out and says so."""
    if started(work.run.state).quick:
        return apply_sanitizers(checked, skipped_sanitizers(work.task.target, "the run was a quick one"))
    work.emit("looking for memory errors and races")
    runs = sanitize_program(
        work.task,
        work.program,
        work.build,
        session=work.session,
        store=work.run.store,
        facts=work.facts,
        options=SanitizeOptions(cache_dir=work.cache_dir),
        reference=work.reference,
        emit=work.emit,
    )
    return apply_sanitizers(checked, runs)


def bench(work: Work) -> None:
    """Time the program beside its baselines, if it was accepted."""
    checked = work.check
    if checked.status == "accepted":
        work.emit("timing beside eager and torch.compile")
        quick = started(work.run.state).quick
        timed = benchmark_program(
            work.task,
            work.program,
            work.build,
            session=work.session,
            store=work.run.store,
            facts=work.facts,
            options=BenchOptions(quick=quick, cache_dir=work.cache_dir),
            graph=work.graph,
            reference=work.reference,
            emit=work.emit,
            stop=work.stop,
        )
    else:
        timed = Bench(
            program_id=checked.program_id,
            task_id=checked.task_id,
            outcome="unmeasured",
            message=f"only accepted programs are timed; this one is {checked.status}",
        )
    work.run.record(
        BenchFinished(
            program_id=timed.program_id, bench=work.run.store.put_fact(timed), outcome=timed.outcome
        )
    )


def decide(work: Work) -> None:
    """Say what follows from the evidence. The stitcher has one round, so it accepts or stops."""
    checked, timed = work.check, work.bench
    good = checked.status == "accepted" and not timed.rejected
    decision: Decision = "accept" if good else "stop"
    work.run.record(
        DecisionMade(program_id=checked.program_id, decision=decision, reason=explain(checked, timed))
    )


def certify(work: Work) -> None:
    """Write the certificate of an accepted program; of any other there is none."""
    if work.check.status != "accepted" or work.bench.rejected:
        return
    work.run.record(certify_run(work.run, work.task, work.plan))


def finish(work: Work) -> None:
    """Close the run."""
    decision = work.run.state.decision
    work.run.record(
        RunFinished(
            status="rejected_cheat" if work.bench.rejected else work.check.status,
            outcome=work.bench.outcome,
            message=decision.reason if decision else "",
        )
    )


STEPS: tuple[tuple[str, Callable[[Work], None]], ...] = (
    ("reference", observe),
    ("graph", capture),
    ("plan", plan),
    ("program", write_program),
    ("build", build),
    ("check", check),
    ("bench", bench),
    ("decision", decide),
    ("certificate", certify),
    ("finished", finish),
)
"""Field of the State that shows that a step is done, and the step."""
