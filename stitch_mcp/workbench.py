"""What the public functions share: settings, the `.stitch` folder, sessions, programs by name."""

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stitch_mcp.config import Config, Settings, configure
from stitch_mcp.named_programs import read_program
from stitch_mcp.printed_commands import resume_command
from stitch_planner.runs.run import Workspace, read_state
from stitch_tools.errors import EnvironmentMissingError, UsageError
from stitch_tools.models import Bench, Build, Check, Graph, Program, ReferenceFacts, Task

if TYPE_CHECKING:
    from stitch_tools.run.interpreter import Interpreter
    from stitch_tools.run.reference_server import ReferenceServer
    from stitch_tools.run.session import TargetSession

Emit = Callable[[str], None]
_UNSANITIZED = "memory errors and races (check --sanitize looks for them)"


@dataclass(frozen=True)
class Trial:
    """A program beside its reference, both ready to run."""

    program: Program
    build: Build | None
    session: "TargetSession"
    reference: "ReferenceServer | None"
    """None where the task's device is not here: then the reference was looked at on the CPU."""
    facts: ReferenceFacts


@dataclass(frozen=True)
class Workbench:
    """The desk of one call: its settings and its `.stitch` folder."""

    config: Config
    workspace: Workspace
    emit: Emit | None
    deadline_s: float
    warm: "TargetSession | None" = None
    """A session that was started before it was needed."""

    @property
    def target(self) -> str:
        """The target's full name: `cuda` becomes the architecture of the GPU here."""
        from stitch_tools.machine.devices import resolve_target

        return resolve_target(self.config.target).name

    def task(
        self,
        reference: str | Path,
        inputs: str | None = None,
        overrides: Mapping[str, object] | None = None,
        allow_relaxed: bool = False,
        *,
        mark_relaxed: bool = False,
    ) -> Task:
        """The task that `reference` names; relative paths start at the current folder.

        With `mark_relaxed` a loosening is allowed, too, but nothing is refused that loosens nothing.
        """
        from stitch_tools.task.references import load_task

        if allow_relaxed:
            refuse_forbidden(self.config)
        task = load_task(
            str(reference),
            workspace=Path.cwd(),
            store=self.workspace.store,
            target=self.target,
            overrides=overrides or {},
            allow_relaxed=allow_relaxed or mark_relaxed,
            inputs=inputs,
        )
        if task.contract.relaxed:
            refuse_forbidden(self.config)
        return task

    def program(self, program: str | Path, target: str, main: str | None, *, native: bool = False) -> Program:
        """The program at a path, or that of a run; `native`: one that a compiler takes."""
        path = Path(program).expanduser()
        if not path.exists() and (str(program) == "last" or "/" not in str(program)):
            run_id = str(program)
            if run_id == "last" or any(name.startswith(run_id) for name in self.workspace.run_ids()):
                state = read_state(self.workspace.run_folder(run_id))
                if state.program is None:
                    raise UsageError(
                        f"run {run_id} has no program yet", hint=resume_command(self.config.workspace, run_id)
                    )
                return self.workspace.store.get_fact(state.program.program, Program)
        return read_program(path, self.workspace.store, target=target, main=main, native=native)

    def build(self, program: Program, archs: Sequence[str] = ()) -> Build:
        """The program's build."""
        from stitch_tools.compile.build import compile_program

        return compile_program(
            program,
            self.workspace.store,
            cache_dir=self.config.cache_dir,
            archs=archs,
            time_limit_s=self.config.build_time_limit_s,
            emit=self.emit,
            prefixes=self._prefixes(),
            require_sandbox=self.config.require_sandbox,
        )

    @cached_property
    def interpreter(self) -> "Interpreter":
        """The target interpreter.

        Raises:
            EnvironmentMissingError: there is none with torch.
        """
        from stitch_tools.run.interpreter import find_interpreter

        return find_interpreter(self.config.python, self.workspace.root)

    def _prefixes(self) -> tuple[Path, ...]:
        """Where the target interpreter's library headers lie; a build alone needs no such interpreter."""
        try:
            return (self.interpreter.prefix,)
        except EnvironmentMissingError:
            return ()

    @contextlib.contextmanager
    def session(self) -> "Generator[TargetSession]":
        """A warm session in the target interpreter."""
        interpreter = self.interpreter
        warm, config = self.warm, self.config
        if warm and warm.fits(interpreter, require_sandbox=config.require_sandbox, threads=config.threads):
            # Whoever started it ends it: nobody waits for that.
            yield warm
            return
        self.say(f"starting {interpreter.path} (torch {interpreter.torch_version})")
        with self.cold_session() as session:
            yield session

    def cold_session(self) -> "TargetSession":
        """A session in the target interpreter that is not started yet."""
        from stitch_tools.run.session import TargetSession

        config = self.config
        return TargetSession(self.interpreter, require_sandbox=config.require_sandbox, threads=config.threads)

    @contextlib.contextmanager
    def observed(
        self, session: "TargetSession", task: Task, known: ReferenceFacts | None = None
    ) -> "Generator[tuple[ReferenceServer, ReferenceFacts]]":
        """The task's reference in a server of its own, and what one look at it tells.

        Where the task's device is not here, the reference is looked at on the CPU. `known` is what an earlier
        look told: it stands for another one where Python and torch are those that it was made with.
        """
        from stitch_tools.machine.devices import resolve_target
        from stitch_tools.run.reference_server import ReferenceServer

        here = resolve_target(task.target).available
        seen = task if here else task.model_copy(update={"target": "cpu"})
        versions = session.torch_version, session.interpreter.python_version
        if known is not None and (known.torch_version, known.python_version) != versions:
            known = None
        self.say("loading the reference" if known else "observing the reference")
        with ReferenceServer(session, seen, self.workspace.store) as server:
            yield server, known or server.observe()

    @contextlib.contextmanager
    def trial(
        self,
        task: Task,
        program: str | Path | Program,
        main: str | None = None,
        known: ReferenceFacts | None = None,
    ) -> Generator[Trial]:
        """The program, built where it is native (a Python file builds itself), and the observed reference."""
        candidate = program if isinstance(program, Program) else self.program(program, task.target, main)
        build = self.build(candidate) if candidate.format == "native" else None
        with self.session() as session, self.observed(session, task, known) as (server, facts):
            reference = server if server.task == task else None
            yield Trial(candidate, build, session, reference, facts)

    def check(
        self, task: Task, trial: Trial, *, sanitize: bool = False, reference_tolerance: bool = False
    ) -> Check:
        """The trial's correctness evidence; `sanitize`: with memory errors and races looked for."""
        from stitch_tools.judge.check import check_program
        from stitch_tools.judge.check_options import CheckOptions

        checked = check_program(
            task,
            trial.program,
            trial.build,
            session=trial.session,
            store=self.workspace.store,
            facts=trial.facts,
            options=CheckOptions(reference_tolerance=reference_tolerance, cache_dir=self.config.cache_dir),
            emit=self.emit,
            deadline_s=self.deadline_s,
            reference=trial.reference,
        )
        if not sanitize:
            return checked.model_copy(update={"not_checked": (*checked.not_checked, _UNSANITIZED)})
        if checked.status in ("build_failed", "unmeasured"):
            return checked
        from stitch_tools.judge.memory import SanitizeOptions, apply_sanitizers, sanitize_program

        self.say("looking for memory errors and races")
        runs = sanitize_program(
            task,
            trial.program,
            trial.build,
            session=trial.session,
            store=self.workspace.store,
            facts=trial.facts,
            options=SanitizeOptions(cache_dir=self.config.cache_dir),
            reference=trial.reference,
            emit=self.emit,
            deadline_s=self.deadline_s,
        )
        return apply_sanitizers(checked, runs)

    def benchmark(self, task: Task, trial: Trial, *, quick: bool, graph: Graph | None = None) -> Bench:
        """The trial's timing beside its baselines; `graph`: the reference's, where it is known."""
        from stitch_tools.judge.timing import BenchOptions, benchmark_program

        return benchmark_program(
            task,
            trial.program,
            trial.build,
            session=trial.session,
            store=self.workspace.store,
            facts=trial.facts,
            options=BenchOptions(quick=quick, cache_dir=self.config.cache_dir),
            graph=graph,
            reference=trial.reference,
            emit=self.emit,
            deadline_s=self.deadline_s,
        )

    def say(self, sentence: str) -> None:
        """Pass a progress sentence on."""
        if self.emit is not None:
            self.emit(sentence)


def refuse_forbidden(config: Config) -> None:
    """Refuse a loosened contract where the settings forbid it.

    Raises:
        UsageError: they do; the message names the setting's source.
    """
    if config.forbid_relaxed:
        origin = config.origin("forbid_relaxed")
        raise UsageError(
            f"loosening a contract is forbidden here ({origin})", hint="leave out --allow-relaxed"
        )


def open_workbench(settings: Settings, emit: Emit | None = None) -> Workbench:
    """The desk for one call; makes the `.stitch` folder.

    Raises:
        UsageError: a setting is wrong.
        StoreError: the workspace cannot be written.
    """
    config = configure(settings)
    workspace = Workspace(config.workspace)
    workspace.prepare()
    return Workbench(config, workspace, emit, time.monotonic() + config.time_limit_s)
