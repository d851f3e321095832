"""Program and baselines side by side: who sits down, how long, and what the figures amount to."""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from stitch_tools.check.reference import ReferenceServer
from stitch_tools.device import Target, cpu_info, resolve_target
from stitch_tools.models import Bench, BenchOutcome, Build, Program, Ratio, ReferenceFacts, Task, Timing
from stitch_tools.processes.session import TargetSession
from stitch_tools.store import Store
from stitch_tools.timing.audit import cpu_seconds, kept_results, moved_work, too_many_cpus
from stitch_tools.timing.blocks import Figure, Rounds, Rules, Series, run_rounds
from stitch_tools.timing.contestant import ContestantFailedError
from stitch_tools.timing.crosscheck import disagreement
from stitch_tools.timing.device_lock import device_lock
from stitch_tools.timing.recheck import recheck
from stitch_tools.timing.ring import RingShape, available_bytes, ring_shape
from stitch_tools.timing.seats import PROGRAM, PROGRAM_GRAPHED, Field, Seat, deal, seat_baseline, seat_program
from stitch_tools.timing.statistics import CPU_NOISE, GPU_NOISE, outcome_of

Emit = Callable[[str], None]
CPU_BASELINES = ("eager", "compile:default")
CUDA_BASELINES = (
    "eager",
    "compile:default",
    "compile:reduce-overhead",
    "compile:max-autotune-no-cudagraphs",
    "compile:max-autotune",
    "cudagraph",
    "cudagraph-static",
)
CUDA_QUICK_BASELINES = ("eager", "compile:default", "cudagraph", "cudagraph-static")
_SEED_BITS = 62
_MEMORY_SHARE = 4
_LONGEST = 4.0
"""The fewest rounds of very long calls may take so many budgets."""
_CUDA_CACHE_BYTES = 64 << 20
_LATENCY_SAMPLES = 40
"""Single calls per visit where they are the headline: each carries the jitter of two wake-ups."""
_NOTE_CHARS = 300
_DISTURBED = 0.10
"""Above this share of disturbed visits the message says so."""


@dataclass(frozen=True)
class BenchOptions:
    """What is timed, and how long."""

    quick: bool = False
    """The fewest rounds, and torch.compile's default mode alone."""
    baselines: tuple[str, ...] | None = None
    """None: those of the target."""
    budget_s: float = 60.0
    """Time for rounds once all contestants sit; half of it in quick runs."""
    compile_limit_s: float = 180.0
    """Longest compilation of one baseline; beyond it the baseline counts as not measured."""
    samples: int = 3
    """Outputs of the timed region that are compared with the reference afterwards."""
    lock_wait_s: float = 600.0
    """How long to wait for another process that times on the same device."""
    cache_dir: Path | None = None
    """Root of our caches; None: the user's cache folder."""
    rules: Rules = field(default_factory=Rules)


def benchmark_program(
    task: Task,
    program: Program,
    build: Build | None,
    *,
    session: TargetSession,
    store: Store,
    facts: ReferenceFacts,
    options: BenchOptions | None = None,
    emit: Emit | None = None,
    deadline_s: float | None = None,
) -> Bench:
    """The Bench of an accepted program; trouble of the program's is the outcome `unmeasured` with its reason.

    Args:
        task: reference and contract.
        program: the candidate.
        build: its build; None only for KernelBench-style programs.
        session: the target interpreter, warm.
        store: where the sources lie.
        facts: what was observed of the reference.
        options: what is timed, and how long.
        emit: takes sentences on the progress.
        deadline_s: a time.monotonic() value after which no further round is begun.

    Raises:
        TaskError: the reference itself fails.
        LockedError: another process times on this device for too long.
        WorkerError, SandboxError: a failure of ours or of this machine.
    """
    began = time.monotonic()
    run = _Run(task, program, session, store, facts, options or BenchOptions(), emit)
    target = resolve_target(task.target)
    refusal = run.refusal(build, target)
    if refusal is not None:
        return run.unmeasured(refusal, target, began)
    key = target.gpu.uuid if target.gpu else "cpu"
    purpose = f"timing {program.program_id[:12]}"
    with device_lock(key, wait_s=run.options.lock_wait_s, purpose=purpose, emit=emit):
        try:
            bench, doubt = run.measure(build, target, deadline_s)
            if doubt is not None:
                run.say(f"{doubt}; timing again")
                run.absent.clear()
                bench, _ = run.measure(build, target, deadline_s)
        except ContestantFailedError as failure:
            return run.unmeasured(f"the program failed while it was timed: {failure.reason}", target, began)
    return bench.model_copy(update={"wall_s": time.monotonic() - began})


@dataclass
class _Run:
    """One bench in progress."""

    task: Task
    program: Program
    session: TargetSession
    store: Store
    facts: ReferenceFacts
    options: BenchOptions
    emit: Emit | None
    absent: list[Timing] = field(default_factory=list[Timing])
    """Baselines that could not be measured, with the reason."""

    def say(self, sentence: str) -> None:
        """Tell whoever listens."""
        if self.emit is not None:
            self.emit(sentence)

    def refusal(self, build: Build | None, target: Target) -> str | None:
        """Why nothing can be timed, where that is known at once."""
        if not target.available:
            return f"this machine has no device for {self.task.target}: {target.device}"
        if self.program.format == "native" and (build is None or not build.ok or build.artifact is None):
            return "the program was not built"
        if self.facts.uses_rng and self.program.format == "native":
            return "the reference draws random numbers in forward, which native programs cannot repeat yet"
        return None

    def unmeasured(self, reason: str, target: Target, began: float) -> Bench:
        """The Bench that says why there are no figures."""
        return Bench(
            program_id=self.program.program_id,
            task_id=self.task.task_id,
            outcome="unmeasured",
            figure=self.figure,
            device=target.device,
            sandbox=self.session.sandbox_level,
            message=reason,
            wall_s=time.monotonic() - began,
        )

    @property
    def figure(self) -> Figure:
        """Which figure ratios are taken on."""
        return "throughput_us" if self.task.target == "cpu" else "latency_us"

    def measure(
        self, build: Build | None, target: Target, deadline_s: float | None
    ) -> tuple[Bench, str | None]:
        """The judged Bench, and how the program's own clock disagrees with ours, None where it agrees.

        Raises:
            ContestantFailedError: the program failed.
        """
        with ExitStack() as stack:
            place = self._field(target)
            judge = stack.enter_context(ReferenceServer(self.session, self.task, self.store))
            weights, draws = deal(stack, judge, place.seeds)
            program = seat_program(
                stack, place, self.program, build, weights=weights, draws=draws, samples=self.options.samples
            )
            seats = [program]
            if place.cuda and self.program.format == "native":
                self._seat(
                    seats,
                    stack,
                    PROGRAM_GRAPHED,
                    lambda own: seat_program(
                        own,
                        place,
                        self.program,
                        build,
                        weights=weights,
                        draws=draws,
                        samples=self.options.samples,
                        graphed=True,
                    ),
                )
            self._seat_baselines(seats, stack, place)
            before_s = cpu_seconds(program.pid)
            rounds = self._rounds(seats, deadline_s)
            moved = moved_work(program.history)
            doubt = self._audit(program, rounds, before_s)
            self._finish(seats)
            # Where others ran beside us a go costs milliseconds more than its calls; that proves nothing.
            if doubt is None and not _describe_disturbance(rounds):
                doubt = moved or disagreement(program)
            self.say("comparing outputs of the timed calls with the reference")
            wrong, unchecked = recheck(judge, self.task, self.facts, place.seeds, program)
            self._recheck_graphed(seats, judge, place)
            bench = self._judge(target, seats, rounds, wrong=wrong, doubt=doubt, unchecked=unchecked)
            return bench, doubt

    def _audit(self, program: Seat, rounds: Rounds, before_s: float | None) -> str | None:
        """What speaks against the times of the program; None where nothing does."""
        after_s, doubt = cpu_seconds(program.pid), None
        if self.task.target == "cpu" and before_s is not None and after_s is not None:
            doubt = too_many_cpus(after_s - before_s, program.history, self.session.threads)
        return doubt or kept_results(program, rounds.series[PROGRAM].throughput_s())

    def _field(self, target: Target) -> Field:
        cache = cpu_info().last_level_cache_bytes
        if target.gpu is not None:
            cache = target.gpu.l2_bytes or _CUDA_CACHE_BYTES
        contestants = 2 + len(self._baselines())
        shape = ring_shape(
            self.facts,
            cache_bytes=cache,
            memory_bytes=available_bytes() // (_MEMORY_SHARE * contestants),
        )
        self.say(_describe_ring(shape))
        seeds = tuple(secrets.randbits(_SEED_BITS) for _ in range(shape.draws))
        return Field(self.session, self.task, self.store, self.facts, shape, seeds, self.options.cache_dir)

    def _baselines(self) -> tuple[str, ...]:
        if self.options.baselines is not None:
            return self.options.baselines
        if self.task.target == "cpu":
            return CPU_BASELINES
        return CUDA_QUICK_BASELINES if self.options.quick else CUDA_BASELINES

    def _seat_baselines(self, seats: list[Seat], stack: ExitStack, place: Field) -> None:
        limit_s = self.options.compile_limit_s
        for kind in self._baselines():

            def sit(own: ExitStack, kind: str = kind) -> Seat:
                return seat_baseline(own, place, kind, compile_limit_s=limit_s)

            self._seat(seats, stack, kind, sit)

    def _seat(self, seats: list[Seat], stack: ExitStack, name: str, sit: Callable[[ExitStack], Seat]) -> None:
        """One more contestant, or the reason why there is none."""
        self.say(f"preparing {name}")
        own = stack.enter_context(ExitStack())
        try:
            seat = sit(own)
            seat.pause()
            seats.append(seat)
        except ContestantFailedError as failure:
            own.close()
            self._leave_out(name, failure.reason)

    def _recheck_graphed(self, seats: list[Seat], judge: ReferenceServer, place: Field) -> None:
        """A graph that replays wrong results is no contestant."""
        for seat in [seat for seat in seats if seat.name == PROGRAM_GRAPHED]:
            wrong, _ = recheck(judge, self.task, self.facts, place.seeds, seat)
            if wrong is not None:
                seats.remove(seat)
                self._leave_out(seat.name, wrong)

    def _leave_out(self, kind: str, reason: str) -> None:
        self.say(f"{kind} is not measured: {reason}")
        first_line = reason.strip().splitlines()[0] if reason.strip() else "no reason was given"
        self.absent.append(Timing(name=kind, latency_us=None, note=first_line[:_NOTE_CHARS]))

    def _rounds(self, seats: list[Seat], deadline_s: float | None) -> Rounds:
        """Run the rounds; a baseline that fails meanwhile leaves, and the rounds begin anew without it."""
        rules = self.options.rules
        if self.figure == "latency_us":
            rules = replace(rules, latency_samples=max(rules.latency_samples, _LATENCY_SAMPLES))
        if self.options.quick:
            rules = replace(rules, max_rounds=rules.min_rounds)
        while True:
            self.say(f"timing {', '.join(seat.name for seat in seats)}")
            budget_s = self.options.budget_s / (2.0 if self.options.quick else 1.0)
            now, last = time.monotonic(), float("inf") if deadline_s is None else deadline_s
            until, hard_until = min(now + budget_s, last), min(now + _LONGEST * budget_s, last)
            try:
                for seat in seats:
                    seat.pause()
                return run_rounds(
                    seats, rules=rules, figure=self.figure, until_s=until, hard_until_s=hard_until
                )
            except ContestantFailedError as failure:
                if failure.name == PROGRAM:
                    raise
                seats[:] = [seat for seat in seats if seat.name != failure.name]
                self._leave_out(failure.name, failure.reason)

    def _finish(self, seats: list[Seat]) -> None:
        for seat in list(seats):
            try:
                seat.finish()
            except ContestantFailedError as failure:
                if seat.name == PROGRAM:
                    raise
                self.say(f"{seat.name}: {failure.reason}")

    def _judge(
        self,
        target: Target,
        seats: Sequence[Seat],
        rounds: Rounds,
        *,
        wrong: str | None,
        doubt: str | None,
        unchecked: str | None,
    ) -> Bench:
        ours = [seat.name for seat in seats if seat.name in (PROGRAM, PROGRAM_GRAPHED)]
        pairs = [(seat.name, name) for name in ours for seat in seats if seat.name not in ours]
        ratios = [row for pair in pairs if (row := self._ratio(*pair, rounds)) is not None]
        outcome: BenchOutcome = "inconclusive"
        against = next((row for row in ratios if (row.baseline, row.contestant) == ("eager", PROGRAM)), None)
        message = "no undisturbed round of eager was measured" if against is None else _explain(against)
        if against is not None:
            outcome = against.outcome
        if doubt is not None:
            outcome, message = "inconclusive", doubt
        if wrong is not None:
            outcome, message, ratios = "unmeasured", wrong, []
        notes = [note for note in (message, _describe_disturbance(rounds), unchecked) if note]
        return Bench(
            program_id=self.program.program_id,
            task_id=self.task.task_id,
            outcome=outcome,
            timings=(*(_timing(seat, rounds.series[seat.name]) for seat in seats), *self.absent),
            ratios=tuple(ratios),
            figure=self.figure,
            device=target.device,
            threads=self.session.threads if self.task.target == "cpu" else None,
            steal_share=rounds.steal_share,
            sandbox=self.session.sandbox_level,
            message="; ".join(notes),
        )

    def _ratio(self, baseline: str, contestant: str, rounds: Rounds) -> Ratio | None:
        interval = rounds.ratio(baseline, contestant, self.figure)
        if interval is None or interval.low is None or interval.high is None:
            return None
        return Ratio(
            baseline=baseline,
            contestant=contestant,
            speedup=interval.middle,
            low=interval.low,
            high=interval.high,
            outcome=outcome_of(interval, noise=CPU_NOISE if self.task.target == "cpu" else GPU_NOISE),
        )


def _timing(seat: Seat, series: Series) -> Timing:
    kept = sum(visit.disturbed for visit in series.visits)
    latency_s = series.latency_s()
    notes = [seat.note, f"{kept} blocks were disturbed in every repetition" if kept else ""]
    is_hidden = latency_s <= 0.0
    if is_hidden:
        notes.append("one call takes less than a go varies by: its latency is not measured")
    return Timing(
        name=seat.name,
        latency_us=None if is_hidden else _us(latency_s),
        latency_spread_us=None if is_hidden else _us(series.latency_spread_s()),
        throughput_us=_us(series.throughput_s()),
        throughput_spread_us=_us(series.throughput_spread_s()),
        n=series.blocks,
        note="; ".join(note for note in notes if note),
    )


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _explain(against: Ratio) -> str:
    if against.outcome != "inconclusive":
        return ""
    if against.low > 1.0 or against.high < 1.0:
        return "the difference is no larger than that between two runs of one program, or rounds are too few"
    return f"the interval of the speed-up, {against.low:.3f} to {against.high:.3f}, does not exclude equality"


def _describe_disturbance(rounds: Rounds) -> str:
    visits = [visit for series in rounds.series.values() for visit in series.visits]
    dirty = sum(not visit.clean for visit in visits)
    if dirty <= _DISTURBED * len(visits):
        return ""
    return (
        f"{dirty} of {len(visits)} visits were left out since something waited for a CPU or lost it:"
        " other processes, or more threads than cores"
    )


def _describe_ring(shape: RingShape) -> str:
    return f"timing over a ring of {shape.slots} slots, {shape.nbytes / 1e6:.0f} MB"
