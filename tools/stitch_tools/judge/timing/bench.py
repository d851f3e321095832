"""Program and baselines side by side: who sits down, how long, and what the figures amount to."""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from stitch_tools.confine.free_memory import available_bytes
from stitch_tools.judge.gpu_health import canary_for, sound_gpu
from stitch_tools.judge.timing.audit import cpu_seconds, kept_results, moved_work, too_many_cpus
from stitch_tools.judge.timing.baseline_seats import begin_compiled, seat_baseline
from stitch_tools.judge.timing.blocks import Contestant, Figure, Rounds, run_rounds
from stitch_tools.judge.timing.contestant import ContestantFailedError
from stitch_tools.judge.timing.crosscheck import disagreement
from stitch_tools.judge.timing.empty_gos import charged, limit_of
from stitch_tools.judge.timing.fetching import left_for_the_fetch
from stitch_tools.judge.timing.from_rest import try_from_rest
from stitch_tools.judge.timing.gains import ratio_of
from stitch_tools.judge.timing.gpu_watch import GpuWatch
from stitch_tools.judge.timing.options import BenchOptions, baselines_of
from stitch_tools.judge.timing.recheck import recheck, try_once
from stitch_tools.judge.timing.renewal import kept_by_content, renewing
from stitch_tools.judge.timing.ring import ring_shape
from stitch_tools.judge.timing.seats import (
    PROGRAM,
    PROGRAM_GRAPHED,
    Field,
    Seat,
    deal,
    load_program,
    seat_loaded,
    seat_program,
)
from stitch_tools.judge.timing.speeding import Speeding, SpeedWatch
from stitch_tools.judge.timing.statistics import CPU_NOISE, GPU_NOISE
from stitch_tools.judge.timing.unseen import at_best_of_two, try_unseen
from stitch_tools.judge.timing.wording import (
    describe_disturbance,
    describe_ring,
    explain,
    is_disturbed,
    others_disturb,
    timing_of,
)
from stitch_tools.judge.timing.working_ahead import worked_ahead
from stitch_tools.judge.timing.writer import convicts
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.device_lock import device_lock, refuse_after
from stitch_tools.machine.devices import Target, cpu_info, resolve_target
from stitch_tools.models import (
    Bench,
    BenchOutcome,
    Build,
    GpuConditions,
    Program,
    Ratio,
    ReferenceFacts,
    Task,
    Timing,
)
from stitch_tools.models.verdict import DataPlane
from stitch_tools.run.reference_server import Inputs, ReferenceServer, Weights
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store

Emit = Callable[[str], None]
_SEED_BITS = 62
_MEMORY_SHARE = 4
_LONGEST = 4.0
"""The fewest rounds of very long calls may take so many budgets."""
_CUDA_CACHE_BYTES = 64 << 20
_LATENCY_SAMPLES = 40
"""Single calls per visit where they are the headline: each carries the jitter of two wake-ups."""
_QUICK_SINGLES = 2
"""Single calls per visit of a quick run whose headline they are not: 40 in all its rounds."""
_QUICK_BLOCK_S = 0.010
"""Others disturb half as many blocks as of 20 ms: rounds of calls under 3 ms took 3 to 4 s, not 8 to 11."""
_NOTE_CHARS = 300
_OURS = (PROGRAM, PROGRAM_GRAPHED)
_HOPELESS_S = 10.0  # So long without a round that nobody disturbed ends a quick run.


def benchmark_program(trial: Trial, options: BenchOptions | None = None) -> Bench:
    """The Bench of an accepted program; trouble of the program's is the outcome `unmeasured` with its reason.

    Args:
        trial: the program beside its reference; without a graph it is captured where ceilings are known.
        options: what is timed, and how long.

    Raises:
        TaskError: the reference itself fails.
        EnvironmentMissingError: the GPU does not answer, or did not after an earlier program.
        InterruptedRunError: the trial's `stop` was set.
        LockedError: another process times on this device for too long.
        WorkerError, SandboxError: a failure of ours or of this machine.
    """
    task, build, session, deadline_s = trial.task, trial.build, trial.session, trial.deadline_s
    began = time.monotonic()
    run = _Run(
        task=task,
        program=trial.program,
        session=session,
        store=trial.store,
        facts=trial.facts,
        options=options or BenchOptions(),
        emit=trial.emit,
        speed=SpeedWatch(trial.graph),
        stop=trial.stop,
        reference=trial.reference,
    )
    target = resolve_target(task.target)
    refusal = run.refusal(build, target)
    if refusal is not None:
        return run.unmeasured(
            refusal, target, began, program_failed=target.available and not run.is_built(build)
        )
    canary = canary_for(session, task.target)
    with sound_gpu(canary):
        try:
            bench = run.settle(build, target, deadline_s)
        except ContestantFailedError as failure:
            if canary is not None:
                canary.doubt()
            reason = f"the program failed: {failure.reason}"
            return run.unmeasured(reason, target, began, program_failed=True)
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
    speed: SpeedWatch
    stop: threading.Event | None
    reference: ReferenceServer | None
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
        if not self.is_built(build):
            return "the program was not built"
        if self.facts.uses_rng and self.program.format == "native":
            return "the reference draws random numbers in forward, which native programs cannot repeat yet"
        return None

    def is_built(self, build: Build | None) -> bool:
        """Whether the program can be loaded; a Python program builds itself."""
        built = build is not None and build.ok and build.artifact is not None
        return built or self.program.format != "native"

    def hold_device(self, target: Target) -> AbstractContextManager[None]:
        """The device for ourselves: other controllers time before or after, and may compile meanwhile."""
        key = target.gpu.uuid if target.gpu else "cpu"
        purpose = f"timing {self.program.program_id[:12]}"
        wait_s = self.options.lock_wait_s
        return device_lock(key, wait_s=wait_s, purpose=purpose, emit=self.emit, stop=self.stop)

    def unmeasured(self, reason: str, target: Target, began: float, *, program_failed: bool = False) -> Bench:
        """The Bench that says why there are no figures."""
        return Bench(
            program_failed=program_failed,
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

    def settle(self, build: Build | None, target: Target, deadline_s: float | None) -> Bench:
        """The judged Bench; of a second timing, where something speaks against the times of the first.

        Raises:
            ContestantFailedError: the program failed.
        """
        bench, doubt = self.measure(build, target, deadline_s)
        if doubt is not None:
            refuse_after(self.stop)
            self.say(f"{doubt}; timing again")
            self.absent.clear()
            bench, _ = self.measure(build, target, deadline_s, again=True)
        return bench

    def measure(
        self, build: Build | None, target: Target, deadline_s: float | None, *, again: bool = False
    ) -> tuple[Bench, str | None]:
        """The judged Bench, and what speaks against the program's times, None where nothing does.

        Raises:
            ContestantFailedError: the program failed.
        """
        with ExitStack() as stack:
            watch = stack.enter_context(GpuWatch(target.gpu.uuid)) if target.gpu is not None else None
            place = self._field(target)
            begin_compiled(stack, place, baselines_of(self.task.target, self.options))
            judge = self.reference or stack.enter_context(
                ReferenceServer(self.session, self.task, self.store)
            )
            judge.revive()
            weights, draws = deal(stack, judge, place.seeds)
            place = replace(place, judge=judge)
            if place.cuda:
                place = renewing(place, judge, draws)
            loaded = load_program(stack, place, self.program, build, weights)
            # Baselines take long to be ready, for a wrong program in vain.
            wrong = None if again else try_once(place, judge, loaded, draws)
            if wrong is not None:
                return self.unmeasured(wrong, target, time.monotonic(), program_failed=True), None
            program = seat_loaded(stack, place, loaded, draws, samples=self.options.samples)
            seats = [program]
            self._seat_graphed(seats, stack, place, build, weights, draws)
            self._seat_baselines(seats, stack, place)
            # Not earlier: torch.compile takes minutes, in which others can time.
            stack.enter_context(self.hold_device(target))
            before_s = cpu_seconds(program.pid)
            rounds = self._rounds(seats, deadline_s, watch)
            limit_s = limit_of(rounds, _OURS)
            rounds = charged(rounds, _OURS)
            timed_s = rounds.series[PROGRAM].throughput_s()
            latency_s = rounds.series[PROGRAM].latency_s()
            others = [v for name, row in rounds.series.items() if name not in _OURS for v in row.visits]
            moved = moved_work(rounds.series[PROGRAM].visits, others)
            crowd = self._crowd(program, before_s)
            doubt = (
                crowd
                or kept_results(program, timed_s, limit_s)
                or kept_by_content(program, timed_s, limit_s)
                or worked_ahead(program, seats, rounds)
                or left_for_the_fetch(program, seats, rounds)
            )
            prove = None
            if again and crowd is None:
                prove = partial(convicts, program, place, weights=weights, draws=draws)
            native = self.program.format == "native"
            speeding = self.speed.look(
                program, place, judge, target, native=native, prove=prove, say=self.say
            )
            self._finish(seats)
            unseen, rested = (
                at_best_of_two(
                    partial(probe, place, judge, program, draws, per_call_s=timed_s, limit_s=limit_s)
                )
                for probe in (partial(try_unseen, latency_s=latency_s), try_from_rest)
            )
            doubt = doubt or moved
            # Where others ran beside us a go costs milliseconds more than its calls; that proves nothing.
            if doubt is None and not others_disturb(rounds, PROGRAM):
                doubt = unseen.doubt or rested.doubt or disagreement(program)
            self.say("comparing outputs of the timed calls with the reference")
            wrong, unchecked = recheck(judge, self.task, self.facts, place.seeds, program)
            self._recheck_graphed(seats, judge, place)
            wrong = wrong or unseen.wrong or rested.wrong
            unchecked = unchecked or unseen.unchecked or rested.unchecked
            gpu = watch.conditions() if watch else None
            seen = _Seen(rounds, speeding, wrong, doubt, unchecked, place.not_renewed, gpu, judge.plane)
            return self._judge(target, seats, seen), doubt or speeding.doubt

    def _crowd(self, program: Seat, before_s: float | None) -> str | None:
        """A sentence where the program used more CPUs than it may; None where it did not."""
        after_s = cpu_seconds(program.pid)
        if self.task.target != "cpu" or before_s is None or after_s is None:
            return None
        return too_many_cpus(after_s - before_s, program.history, self.session.threads)

    def _field(self, target: Target) -> Field:
        cache = cpu_info().last_level_cache_bytes
        if target.gpu is not None:
            cache = target.gpu.l2_bytes or _CUDA_CACHE_BYTES
        contestants = 2 + len(baselines_of(self.task.target, self.options))
        shape = ring_shape(
            self.facts,
            cache_bytes=cache,
            memory_bytes=available_bytes() // (_MEMORY_SHARE * contestants),
        )
        self.say(describe_ring(shape))
        seeds = tuple(secrets.randbits(_SEED_BITS) for _ in range(shape.draws))
        return Field(self.session, self.task, self.store, self.facts, shape, seeds, self.options.cache_dir)

    def _seat_graphed(
        self,
        seats: list[Seat],
        stack: ExitStack,
        place: Field,
        build: Build | None,
        weights: Weights,
        draws: Sequence[Inputs],
    ) -> None:
        """The program a second time, captured in a CUDA graph, where it can be."""
        if not place.cuda or self.program.format != "native":
            return

        def sit(own: ExitStack) -> Seat:
            return seat_program(
                own,
                place,
                self.program,
                build,
                weights=weights,
                draws=draws,
                samples=self.options.samples,
                graphed=True,
            )

        self._seat(seats, stack, PROGRAM_GRAPHED, sit)

    def _seat_baselines(self, seats: list[Seat], stack: ExitStack, place: Field) -> None:
        limit_s = self.options.compile_limit_s
        for kind in baselines_of(self.task.target, self.options):

            def sit(own: ExitStack, kind: str = kind) -> Seat:
                return seat_baseline(own, place, kind, compile_limit_s=limit_s)

            self._seat(seats, stack, kind, sit)

    def _seat(self, seats: list[Seat], stack: ExitStack, name: str, sit: Callable[[ExitStack], Seat]) -> None:
        """One more contestant, or the reason why there is none."""
        refuse_after(self.stop)
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

    def _rounds(self, seats: list[Seat], deadline_s: float | None, watch: GpuWatch | None) -> Rounds:
        """Run the rounds; a baseline that fails meanwhile leaves, and the rounds begin anew without it."""
        rules = self.options.rules
        if self.figure == "latency_us":
            rules = replace(rules, latency_samples=max(rules.latency_samples, _LATENCY_SAMPLES))
        if self.options.quick:
            rules = replace(rules, max_rounds=rules.min_rounds, give_up_s=_HOPELESS_S)
            if self.figure == "throughput_us":
                rules = replace(rules, latency_samples=_QUICK_SINGLES, short_block_s=_QUICK_BLOCK_S)

        def read(contestant: Contestant) -> None:
            refuse_after(self.stop)
            if watch is not None and contestant.name == PROGRAM:
                watch.read()

        while True:
            self.say(f"timing {', '.join(seat.name for seat in seats)}")
            budget_s = self.options.budget_s / (2.0 if self.options.quick else 1.0)
            now, last = time.monotonic(), float("inf") if deadline_s is None else deadline_s
            until, hard_until = min(now + budget_s, last), min(now + _LONGEST * budget_s, last)
            try:
                for seat in seats:
                    seat.pause()
                return run_rounds(
                    seats,
                    rules=rules,
                    figure=self.figure,
                    until_s=until,
                    hard_until_s=hard_until,
                    after_visit=read,
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

    def _judge(self, target: Target, seats: Sequence[Seat], seen: "_Seen") -> Bench:
        rounds = seen.rounds
        ours = [seat.name for seat in seats if seat.name in _OURS]
        pairs = [(seat.name, name) for name in ours for seat in seats if seat.name not in ours]
        found = [ratio_of(rounds, *pair, figure=self.figure, noise=self._noise) for pair in pairs]
        ratios = [row for row in found if row is not None]
        outcome: BenchOutcome = "inconclusive"
        against = next((row for row in ratios if (row.baseline, row.contestant) == ("eager", PROGRAM)), None)
        message = self._explain(against, rounds)
        if against is not None:
            outcome = against.outcome
        if seen.doubt is not None:
            outcome, message = "inconclusive", seen.doubt
            ratios = [row.model_copy(update={"outcome": outcome}) for row in ratios]
        against_it = seen.wrong or seen.speeding.conviction
        if against_it is not None:
            outcome, message, ratios = "unmeasured", against_it, []
        notes = [note for note in (message, describe_disturbance(rounds), seen.unchecked) if note]
        return Bench(
            program_id=self.program.program_id,
            task_id=self.task.task_id,
            outcome=outcome,
            timings=(*(timing_of(seat, rounds.series[seat.name]) for seat in seats), *self.absent),
            ratios=tuple(ratios),
            figure=self.figure,
            device=target.device,
            threads=self.session.threads if self.task.target == "cpu" else None,
            steal_share=rounds.steal_share,
            disturbed=is_disturbed(rounds),
            gpu=seen.gpu,
            bounds=seen.speeding.bounds,
            findings=seen.speeding.findings,
            not_checked=(*seen.speeding.not_checked, *filter(None, [seen.not_renewed])),
            sandbox=self.session.sandbox_level,
            plane=seen.plane,
            message="; ".join(notes),
            doubt=seen.doubt or "",
            program_failed=against_it is not None,
        )

    def _explain(self, against: Ratio | None, rounds: Rounds) -> str:
        interval = rounds.ratio("eager", PROGRAM, self.figure) if "eager" in rounds.series else None
        count = interval.count if interval is not None else 0
        return explain(against, rounds=count, noise=self._noise, quick=self.options.quick)

    @property
    def _noise(self) -> float:
        return CPU_NOISE if self.task.target == "cpu" else GPU_NOISE


@dataclass(frozen=True)
class _Seen:
    """What one run of rounds showed beside its figures."""

    rounds: Rounds
    speeding: Speeding
    wrong: str | None
    """What is wrong with outputs of timed calls."""
    doubt: str | None
    unchecked: str | None
    not_renewed: str
    gpu: GpuConditions | None
    plane: DataPlane | None
