"""What the steps of one run share: its facts by name, and one warm session."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

from stitch_planner.memory_file import MemoryFile
from stitch_planner.plan import Plan
from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.reviews import Opinion, ReviewSubject
from stitch_planner.runs.run import Run
from stitch_planner.runs.state import State
from stitch_planner.workbench import Workbench
from stitch_tools.errors import StoreError
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.devices import Target
from stitch_tools.models.base import Fact
from stitch_tools.models.graph import Ceilings, Graph
from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession

FactT = TypeVar("FactT", bound=Fact)


class Written(NamedTuple):
    """A program that a coder wrote."""

    program: Program
    notes: tuple[str, ...]
    """What the coder wants a reader to know."""


class Reviewer(Protocol):
    """Gives an opinion on programs that count."""

    def opinions(self, subject: ReviewSubject) -> tuple[tuple[Opinion, ...], str]:
        """The opinions, and why one or a vote is missing, "" where none is.

        Raises:
            InterruptedRunError: somebody asked to stop.
        """
        ...


class Coder(Protocol):
    """Writes the programs of a run."""

    @property
    def name(self) -> str:
        """Author of its programs."""
        ...

    @property
    def refines(self) -> bool:
        """Whether a further program may be faster than one that counts, though nobody set a goal."""
        ...

    @property
    def reviewer(self) -> "Reviewer | None":
        """Who gives an opinion on its programs; None: nobody is asked."""
        ...

    def rounds_left(self, state: State) -> int:
        """How many programs it may still write."""
        ...

    def write(self, context: "RunContext") -> Written:
        """The next program.

        Raises:
            StitchFailedError: it can write none.
            StitchError: what it needs is missing, or the budget is spent.
        """
        ...


class Refinement(NamedTuple):
    """What a model made of a plan."""

    author: str
    """The model's name."""
    plan: Plan | None
    """None: the deterministic plan stands."""
    problem: str
    """Why it stands; "" where there is a plan."""


class Planner(Protocol):
    """Makes a better plan of the deterministic one."""

    def refine(self, context: "RunContext") -> Refinement:
        """The refined plan, or why there is none.

        Raises:
            StitchError: the run was stopped, or its time is over.
        """
        ...


@dataclass
class RunContext:
    """The run, its facts by name, and a session of the target interpreter, started when first needed."""

    run: Run
    task: Task
    target: Target
    """The task's device, and whether it is here."""
    workbench: Workbench
    coder: Coder
    memory: MemoryFile | None = None
    """Lessons of earlier runs; None: none are asked for or kept."""
    planner: Planner | None = None
    """None where no model plans."""
    _session: TargetSession | None = field(default=None, init=False)
    _reference: ReferenceServer | None = field(default=None, init=False)
    _cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

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
            self._session = self._cleanup.enter_context(self.workbench.session())
        return self._session

    @property
    def reference(self) -> ReferenceServer:
        """The reference in a server of its own; where the task's device is not here, it runs on the CPU."""
        if self._reference is None:
            server = self.workbench.reference(self.session, self.task)
            self._reference = self._cleanup.enter_context(server)
        return self._reference

    @property
    def facts(self) -> ReferenceFacts:
        """What was observed of the reference."""
        return self._stored(self.run.state.reference and self.run.state.reference.facts, ReferenceFacts)

    @property
    def graph(self) -> Graph:
        """The captured graph."""
        return self._stored(self.run.state.graph and self.run.state.graph.graph, Graph)

    @property
    def ceilings(self) -> Ceilings | None:
        """The device's ceilings, None where the device is not here."""
        event = self.run.state.graph
        return self._stored(event.ceilings, Ceilings) if event and event.ceilings else None

    @property
    def plan(self) -> Plan:
        """The deterministic plan, which the stitcher writes its program from."""
        return self._stored(self.run.state.plan and self.run.state.plan.plan, Plan)

    @property
    def newest_plan(self) -> Plan:
        """The plan that a model refined, else the deterministic one."""
        refined = self.run.state.refinement
        return self._stored(refined.plan, Plan) if refined and refined.plan else self.plan

    @property
    def attempt(self) -> Attempt:
        """The current attempt.

        Raises:
            StoreError: the run has none.
        """
        if self.run.state.current is None:
            raise StoreError("the run has no program yet", hint="this is a fault of ours; solve again")
        return self.run.state.current

    @property
    def program(self) -> Program:
        """The current attempt's program."""
        return self.run.store.get_fact(self.attempt.program.program, Program)

    @property
    def build(self) -> Build | None:
        """Its build, the artifact made again where the cache dropped it; None for a Python program."""
        event = self.attempt.build
        if event is None or event.build is None:
            return None
        recorded = self.run.store.get_fact(event.build, Build)
        if recorded.ok and recorded.artifact and not Path(recorded.artifact).exists():
            return self.workbench.build(self.program)
        return recorded

    @property
    def trial(self) -> Trial:
        """The current program beside its reference, for an instrument."""
        return Trial(
            task=self.task,
            program=self.program,
            build=self.build,
            session=self.session,
            store=self.run.store,
            facts=self.facts,
            # One that looks at the reference on the CPU cannot judge a program of another device.
            reference=self.reference if self.reference.task == self.task else None,
            emit=self.workbench.emit,
            stop=self.workbench.stop,
        )

    @property
    def check(self) -> Check:
        """Its check."""
        return self._stored(self.attempt.check and self.attempt.check.check, Check)

    @property
    def bench(self) -> Bench:
        """Its timing."""
        return self._stored(self.attempt.bench and self.attempt.bench.bench, Bench)

    def _stored(self, sha256: str | None, kind: type[FactT]) -> FactT:
        if sha256 is None:
            raise StoreError(
                f"the run has no {kind.__name__} yet", hint="this is a fault of ours; solve again"
            )
        return self.run.store.get_fact(sha256, kind)
