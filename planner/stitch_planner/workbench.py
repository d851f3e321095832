"""The workbench: where instruments work, with which interpreter, and for how long.

The one context that command line, server and loop pass to an instrument. It holds no other setting of theirs:
they resolve themselves which program or reference a user means.
"""

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stitch_planner.profiles import keep_profile, score_predictions
from stitch_planner.runs.run import Workspace
from stitch_tools.errors import EnvironmentMissingError, StoreError
from stitch_tools.models.acceptance import AcceptPolicy
from stitch_tools.models.profile import Profile
from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.models.verdict import Bench, Check, SandboxLevel

if TYPE_CHECKING:
    from stitch_tools.judge.trial import Trial
    from stitch_tools.profile.profile_work import KnownFacts, ProfileOptions
    from stitch_tools.run.interpreter import Interpreter
    from stitch_tools.run.reference_server import ReferenceServer
    from stitch_tools.run.session import TargetSession

Emit = Callable[[str], None]
_UNSANITIZED = "memory errors and races (check --sanitize looks for them)"


@dataclass(frozen=True)
class Workbench:
    """Workspace, interpreter and limits of one call or run."""

    workspace: Workspace
    python: "str | Interpreter | None" = None
    """Target interpreter, or where it lies; None: found as `find_interpreter` says."""
    threads: int | None = None
    """CPU threads of program, reference and baselines; None: all."""
    require_sandbox: SandboxLevel | None = None
    """Weakest isolation that is accepted; None: any."""
    cache_dir: Path | None = None
    """Root of our caches; None is the user's cache folder."""
    build_time_limit_s: float = 600.0
    """Seconds for one compiler run."""
    bench_budget_s: float = 60.0
    """Time for a bench's rounds; half of it in quick runs."""
    compile_baselines: bool = True
    """Whether torch.compile is timed beside a program."""
    policy: AcceptPolicy = field(default_factory=AcceptPolicy)
    """Which shortcomings of a correct program are accepted."""
    emit: Emit | None = None
    """Takes sentences on the progress."""
    deadline_s: float | None = None
    """A time.monotonic() value after which no further draw, tool or round is started."""
    stop: threading.Event | None = None
    """When set, a timing ends without a result."""
    warm: "TargetSession | None" = None
    """A session that was started before it was needed."""
    stock_extensions: bool = False
    """Whether extensions that a program builds are built exactly as torch does, behind its whole headers."""

    def say(self, sentence: str) -> None:
        """Pass a progress sentence on."""
        if self.emit is not None:
            self.emit(sentence)

    @cached_property
    def interpreter(self) -> "Interpreter":
        """The target interpreter.

        Raises:
            EnvironmentMissingError: there is none with torch.
        """
        # Imported here, not at the top: a workbench is also made where nothing is run, and such calls start
        # faster without it.
        from stitch_tools.run.interpreter import Interpreter, find_interpreter

        if isinstance(self.python, Interpreter):
            return self.python
        return find_interpreter(self.python, self.workspace.root)

    @contextlib.contextmanager
    def session(self) -> "Generator[TargetSession]":
        """A warm session in the target interpreter."""
        interpreter, warm = self.interpreter, self.warm
        if (
            warm
            and not self.stock_extensions
            and warm.fits(interpreter, require_sandbox=self.require_sandbox, threads=self.threads)
        ):
            # The process that started the warm session also ends it, so no caller waits for its end.
            yield warm
            return
        self.say(f"starting {interpreter.path} (torch {interpreter.torch_version})")
        with self.cold_session() as session:
            yield session

    def cold_session(self) -> "TargetSession":
        """A session in the target interpreter that is not started yet."""
        from stitch_tools.run.session import TargetSession

        return TargetSession(
            self.interpreter,
            require_sandbox=self.require_sandbox,
            threads=self.threads,
            stock_extensions=self.stock_extensions,
        )

    def build(self, program: Program, archs: Sequence[str] = ()) -> Build:
        """The program's build.

        Raises:
            EnvironmentMissingError: no fitting compiler, or missing headers.
            SandboxError: compilers are isolated less than required.
        """
        from stitch_tools.compile.build import compile_program

        return compile_program(
            program,
            self.workspace.store,
            cache_dir=self.cache_dir,
            archs=archs,
            time_limit_s=self.build_time_limit_s,
            emit=self.emit,
            prefixes=self._prefixes(),
            require_sandbox=self.require_sandbox,
        )

    def _prefixes(self) -> tuple[Path, ...]:
        """Where the target interpreter's library headers lie; a build alone needs no such interpreter."""
        try:
            return (self.interpreter.prefix,)
        except EnvironmentMissingError:
            return ()

    def reference(
        self, session: "TargetSession", task: Task, *, call_limit_s: float | None = None
    ) -> "ReferenceServer":
        """A server of the task's reference that is not started yet.

        Where the task's device is not here, the reference is looked at on the CPU. None of its requests may
        take longer than `call_limit_s` (None: minutes).
        """
        from stitch_tools.machine.devices import resolve_target
        from stitch_tools.run.reference_server import ReferenceServer

        here = resolve_target(task.target).available
        observed_task = task if here else task.model_copy(update={"target": "cpu"})
        store = self.workspace.store
        if call_limit_s is None:
            return ReferenceServer(session, observed_task, store)
        return ReferenceServer(session, observed_task, store, call_limit_s=call_limit_s)

    @contextlib.contextmanager
    def observed(
        self,
        session: "TargetSession",
        task: Task,
        known: ReferenceFacts | None = None,
        *,
        call_limit_s: float | None = None,
    ) -> "Generator[tuple[ReferenceServer, ReferenceFacts]]":
        """The task's reference in a server of its own, and the facts that observing it gave.

        `known` are the facts of an earlier observation: they are used again where Python and torch are those
        that they were made with.
        """
        # Dtypes, strides and warnings can differ between versions of torch, so facts are reused for equal
        # versions only.
        versions = session.torch_version, session.interpreter.python_version
        if known is not None and (known.torch_version, known.python_version) != versions:
            known = None
        from stitch_tools.judge.memory_holders import naming_holders

        self.say("loading the reference" if known else "observing the reference")
        with (
            naming_holders(task.target),
            self.reference(session, task, call_limit_s=call_limit_s) as server,
        ):
            yield server, known or server.observe()

    @contextlib.contextmanager
    def trial(self, task: Task, program: Program, known: ReferenceFacts | None = None) -> "Generator[Trial]":
        """The program, built where it is native (a Python file builds itself), beside its observed reference.

        Args:
            task: reference and contract.
            program: the candidate.
            known: as in `observed`.
        """
        from stitch_tools.judge.trial import Trial

        # Built before the session starts: a program that does not compile then costs no start of torch.
        build = self.build(program) if program.format == "native" else None
        with self.session() as session, self.observed(session, task, known) as (server, facts):
            yield Trial(
                task=task,
                program=program,
                build=build,
                session=session,
                store=self.workspace.store,
                facts=facts,
                # One that looks at the reference on the CPU cannot judge a program of another device.
                reference=server if server.task == task else None,
                emit=self.emit,
                deadline_s=self.deadline_s,
                stop=self.stop,
            )

    def check(
        self,
        trial: "Trial",
        *,
        sanitize: bool = False,
        sanitize_wrong: bool = True,
        reference_tolerance: bool = False,
    ) -> Check:
        """The trial's correctness evidence; `sanitize`: with memory errors and races looked for.

        With `sanitize_wrong` a program that is not accepted is looked at, too: it may say why.
        """
        from stitch_tools.judge.check import check_program
        from stitch_tools.judge.check_options import CheckOptions

        options = CheckOptions(reference_tolerance=reference_tolerance, cache_dir=self.cache_dir)
        checked = check_program(trial, options)
        if not sanitize:
            # What was left out is part of the evidence: a certificate lists it, so that nobody takes silence
            # for a pass.
            return checked.model_copy(update={"not_checked": (*checked.not_checked, _UNSANITIZED)})
        # There is nothing to run under a sanitizer.
        if checked.status in ("build_failed", "unmeasured"):
            return checked
        if checked.status != "accepted" and not sanitize_wrong:
            return checked
        from stitch_tools.judge.memory import SanitizeOptions, apply_sanitizers, sanitize_program

        self.say("looking for memory errors and races")
        runs = sanitize_program(trial, SanitizeOptions(cache_dir=self.cache_dir))
        return apply_sanitizers(checked, runs)

    def benchmark(self, trial: "Trial", *, quick: bool, other: Program | None = None) -> Bench:
        """The trial's timing beside its baselines, and beside another program."""
        from stitch_tools.judge.timing import BenchOptions, benchmark_program
        from stitch_tools.judge.timing.program_runners import beside

        built = self.build(other) if other and other.format == "native" else None
        options = BenchOptions(
            quick=quick,
            compile_baselines=self.compile_baselines,
            budget_s=self.bench_budget_s,
            cache_dir=self.cache_dir,
            other=beside(other, built) if other else None,
        )
        bench = benchmark_program(trial, options)
        # What a profile promised is compared with what the next program really takes.
        with contextlib.suppress(StoreError):
            score_predictions(self.workspace, bench, trial.program.parent_id)
        return bench

    def profile(
        self,
        trial: "Trial",
        check: Check,
        *,
        options: "ProfileOptions",
        known: "KnownFacts | None" = None,
    ) -> Profile:
        """The profile of the trial's program, which `check` accepted, kept in the workspace."""
        from stitch_tools.profile.profiling import profile_program

        profile = profile_program(trial, check, options=options, known=known)
        keep_profile(self.workspace, profile)
        return profile
