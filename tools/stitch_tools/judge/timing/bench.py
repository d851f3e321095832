"""Benchmark a program against its baselines."""

import secrets
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial

from stitch_tools.judge.gpu_health import canary_for, sound_gpu
from stitch_tools.judge.memory_holders import BenchMemory
from stitch_tools.judge.timing.baseline_runners import COMPILE_LIMIT_S, start_baseline
from stitch_tools.judge.timing.call_overhead import charge_overhead, overhead_limit
from stitch_tools.judge.timing.contestants import Contestants
from stitch_tools.judge.timing.cpu_time import measure_cpu_times
from stitch_tools.judge.timing.early_baselines import EarlyBaselines, early_kinds
from stitch_tools.judge.timing.gpu_watch import GpuWatch
from stitch_tools.judge.timing.input_renewal import with_renewed_inputs
from stitch_tools.judge.timing.options import BenchOptions, baselines_of
from stitch_tools.judge.timing.output_check import check_outputs, load_right
from stitch_tools.judge.timing.probes import PROBES, Probe, ProbeContext, ProbeReport
from stitch_tools.judge.timing.probes.extra_cpus import cpu_seconds
from stitch_tools.judge.timing.program_runners import (
    PROGRAM,
    PROGRAM_GRAPHED,
    LoadedProgram,
    NamedProgram,
    RingPlan,
    load_program,
    programs_among,
    start_ring,
)
from stitch_tools.judge.timing.report import TimingEvidence, make_bench
from stitch_tools.judge.timing.ring import ring_shape
from stitch_tools.judge.timing.rounds import Figure
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.setup import Setup, make_draws
from stitch_tools.judge.timing.timed_process import RunnerFailedError
from stitch_tools.judge.timing.wording import describe_doubt, describe_ring
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.device_lock import device_lock, refuse_after
from stitch_tools.machine.device_memory import DeviceMemory, device_memory
from stitch_tools.machine.devices import Target, cpu_info, resolve_target
from stitch_tools.models.verdict import Bench
from stitch_tools.protocol.free_memory import available_bytes
from stitch_tools.protocol.messages_reference import WeightsMade
from stitch_tools.run.reference_server import Inputs, ReferenceServer

_SEED_BITS = 62
_MEMORY_SHARE = 4
_CUDA_CACHE_BYTES = 64 << 20
# Outputs of the timed region that are compared with the reference afterwards.
_SAMPLES = 3


def benchmark_program(
    trial: Trial,
    options: BenchOptions | None = None,
    *,
    probes: Sequence[Probe] = PROBES,
    memory: DeviceMemory | None = None,
) -> Bench:
    """The Bench of an accepted program; trouble of the program's is the outcome `unmeasured` with its reason.

    Args:
        trial: the program beside its reference.
        options: what is timed, and how long.
        probes: look after the rounds at whether the times are what calls cost.
        memory: what it shares with other jobs; by default that of the task's device.

    Raises:
        TaskError: the reference itself fails.
        EnvironmentMissingError: the GPU does not answer, or did not after an earlier program.
        InterruptedRunError: the trial's `stop` was set.
        LockedError: another process times on this device for too long.
        WorkerError, SandboxError: a failure of ours or of this machine.
    """
    began = time.monotonic()
    run = _Run(trial, options or BenchOptions(), probes)
    bench = run.refusal()
    if bench is None:
        shared = BenchMemory(trial, memory or device_memory(trial.task.target))
        canary = canary_for(trial.session, trial.task.target)
        with sound_gpu(canary):
            try:
                bench = run.measure_twice_if_doubtful()
            except RunnerFailedError as failure:
                if canary is not None:
                    canary.doubt()
                bench = run.unmeasured(f"the program failed: {failure.reason}", program_failed=True)
        bench = shared.excuse(bench)
    return bench.model_copy(update={"wall_s": time.monotonic() - began})


@dataclass
class _Run:
    """One bench in progress."""

    trial: Trial
    options: BenchOptions
    probes: Sequence[Probe]
    target: Target = field(init=False)

    def __post_init__(self) -> None:
        self.target = resolve_target(self.trial.task.target)

    @property
    def _is_native(self) -> bool:
        return self.trial.program.format == "native"

    @property
    def _figure(self) -> Figure:
        """Which figure ratios are taken on."""
        return "throughput_us" if self.trial.task.target == "cpu" else "latency_us"

    def refusal(self) -> Bench | None:
        """The Bench where nothing can be timed, and that is known at once."""
        if not self.target.available:
            return self.unmeasured(
                f"this machine has no device for {self.trial.task.target}: {self.target.device}"
            )
        built = self.trial.build is not None and self.trial.build.ok and self.trial.build.artifact is not None
        # A Python program builds itself.
        if self._is_native and not built:
            return self.unmeasured("the program was not built", program_failed=True)
        if self._is_native and self.trial.facts.uses_rng:
            return self.unmeasured(
                "the reference draws random numbers in forward, which native programs cannot repeat yet"
            )
        return None

    def unmeasured(self, reason: str, *, program_failed: bool = False) -> Bench:
        """The Bench that says why there are no figures."""
        return Bench(
            program_failed=program_failed,
            program_id=self.trial.program.program_id,
            task_id=self.trial.task.task_id,
            outcome="unmeasured",
            figure=self._figure,
            device=self.target.device,
            sandbox=self.trial.session.sandbox_level,
            message=reason,
        )

    def measure_twice_if_doubtful(self) -> Bench:
        """The Bench; of a second timing, where something speaks against the times of the first.

        Raises:
            RunnerFailedError: the program failed.
        """
        bench = self._measure()
        # One busy moment can raise a doubt; what a program does, it does again.
        if bench.doubts and not self.trial.is_late:
            refuse_after(self.trial.stop)
            self.trial.say(
                f"{describe_doubt(bench.doubts[0])}. Timing it once more: a busy machine can cause that"
            )
            bench = self._measure(again=True)
        return bench

    def _measure(self, *, again: bool = False) -> Bench:
        """The Bench of one timing.

        Raises:
            RunnerFailedError: the program failed.
        """
        with ExitStack() as stack:
            gpu = self.target.gpu
            watch = stack.enter_context(GpuWatch(gpu.uuid)) if gpu is not None else None
            judge = self.trial.reference or stack.enter_context(
                ReferenceServer(self.trial.session, self.trial.task, self.trial.store)
            )
            judge.revive()
            setup = self._setup(judge)
            weights, draws = make_draws(stack, judge, setup.seeds)
            if setup.cuda:
                setup = with_renewed_inputs(setup, draws)
            kinds = baselines_of(self.trial.task.target, self.options)
            nbytes = setup.shape.nbytes + sum(row.nbytes for row in setup.facts.parameters)
            begun = early_kinds(kinds, cuda=setup.cuda, nbytes=nbytes)
            early = stack.enter_context(EarlyBaselines(partial(_prepare, setup), begun))
            own = NamedProgram(PROGRAM, self.trial.program, self.trial.build)
            # Compiled baselines take long to be ready, for a wrong program in vain.
            loaded, wrong = load_right(stack, setup, own, weights, draws, look=not again)
            if wrong:
                return self.unmeasured(f"its first call {wrong}", program_failed=True)
            contestants = Contestants(
                self.options, self._figure, self.trial.say, self.trial.stop, self.trial.deadline_s
            )
            plan = RingPlan(setup.shape.slots, draws, _SAMPLES)
            contestants.runners.append(start_ring(stack, setup, loaded, plan))
            self._add_programs(stack, contestants, setup, plan, weights)
            for kind in kinds:
                if not contestants.is_hopeless(kind):
                    limit_s = contestants.limit_s(kind, COMPILE_LIMIT_S)
                    contestants.add(stack, kind, partial(early.take, kind=kind, limit_s=limit_s))
            # Not earlier: torch.compile takes minutes, in which others can time.
            held = stack.enter_context(ExitStack())
            held.enter_context(self._hold_device())
            evidence = self._time(contestants, setup, loaded, draws, watch, held)
            bench = make_bench(
                evidence,
                contestants,
                setup,
                program_id=self.trial.program.program_id,
                device=self.target.device,
            )
            if setup.cuda or bench.outcome != "inconclusive" or bench.is_doubtful:
                return bench
            if not self.options.can_decide:
                return bench  # Another process and its rounds would take several times as long as all before.
            programs = [row for row in (own, self.options.other) if row is not None]
            cpu = measure_cpu_times(
                setup, programs, weights, draws, until_s=self.trial.deadline_s, say=self.trial.say
            )
            return bench.model_copy(update={"cpu_timings": cpu.timings, "cpu_ratios": cpu.ratios})

    def _add_programs(
        self, stack: ExitStack, contestants: Contestants, setup: Setup, plan: RingPlan, weights: WeightsMade
    ) -> None:
        """Start what stands beside the program and is no baseline: its own graph, and another program."""
        program, built, other = self.trial.program, self.trial.build, self.options.other
        if setup.cuda and self._is_native:

            def graphed(own: ExitStack) -> Runner:
                captured = load_program(own, setup, program, built, weights, graphed=True)
                return start_ring(own, setup, captured, plan)

            contestants.add(stack, PROGRAM_GRAPHED, graphed)
        if other is not None:

            def beside(own: ExitStack) -> Runner:
                found, wrong = load_right(own, setup, other, weights, plan.draws)
                if wrong:
                    raise RunnerFailedError(other.name, f"its first call {wrong}")
                return start_ring(own, setup, found, plan)

            contestants.add(stack, other.name, beside)

    def _setup(self, judge: ReferenceServer) -> Setup:
        gpu = self.target.gpu
        cache = cpu_info().last_level_cache_bytes if gpu is None else gpu.l2_bytes or _CUDA_CACHE_BYTES
        others = 0 if self.options.other is None else 1
        contestants = 2 + others + len(baselines_of(self.trial.task.target, self.options))
        memory_bytes = available_bytes() // (_MEMORY_SHARE * contestants)
        shape = ring_shape(
            self.trial.facts,
            cache_bytes=cache,
            memory_bytes=memory_bytes,
            max_slots=self.options.slots,
        )
        self.trial.say(describe_ring(shape))
        seeds = tuple(secrets.randbits(_SEED_BITS) for _ in range(shape.draws))
        return Setup(
            self.trial.session,
            self.trial.task,
            self.trial.store,
            self.trial.facts,
            shape,
            seeds,
            self.options.cache_dir,
            judge,
            alone=self._hold_device if gpu is not None else nullcontext,
        )

    def _hold_device(self) -> AbstractContextManager[None]:
        """The device for ourselves: other controllers time before or after, and may compile meanwhile."""
        key = self.target.gpu.uuid if self.target.gpu else "cpu"
        purpose = f"timing {self.trial.program.program_id[:12]}"
        wait_s = self.options.lock_wait_s
        return device_lock(key, wait_s=wait_s, purpose=purpose, emit=self.trial.emit, stop=self.trial.stop)

    def _time(
        self,
        contestants: Contestants,
        setup: Setup,
        loaded: LoadedProgram,
        draws: Sequence[Inputs],
        watch: GpuWatch | None,
        held: ExitStack,
    ) -> TimingEvidence:
        """Run the rounds and the probes, and compare outputs of the timed calls.

        `held` is closed once nothing but single probes need the GPU for themselves: the oracle, which judges
        outputs, runs far longer than they do.

        Raises:
            RunnerFailedError: the program failed.
        """
        program = contestants.runners[0]
        before_s = cpu_seconds(program.child.pid)
        rounds = contestants.run_rounds(watch)
        after_s = cpu_seconds(program.child.pid)
        programs = programs_among(rounds.series)
        context = ProbeContext(
            setup=setup,
            target=self.target,
            loaded=loaded,
            program=program,
            runners=tuple(contestants.runners),
            draws=draws,
            rounds=charge_overhead(rounds, programs),
            overhead_limit_s=overhead_limit(rounds, programs),
            cpu_s=None if before_s is None or after_s is None else after_s - before_s,
            say=self.trial.say,
        )
        reports: list[ProbeReport] = []
        for probe in self.probes:
            if probe.stage == "running" and not any(report.doubts for report in reports):
                reports.append(probe.look(context))
        contestants.finish()
        if setup.cuda:
            held.close()
        reports += [probe.look(context) for probe in self.probes if probe.stage == "finished"]
        self.trial.say("comparing outputs of the timed calls with the reference")
        outputs = check_outputs(setup, program)
        self._check_other_programs(contestants, setup)
        gpu = watch.conditions() if watch else None
        return TimingEvidence(context.rounds, reports, outputs, gpu)

    def _check_other_programs(self, contestants: Contestants, setup: Setup) -> None:
        """Leave the program's graph, and another program beside it, out where their results are wrong."""
        others = programs_among(row.name for row in contestants.runners if row.name != PROGRAM)
        for runner in [row for row in contestants.runners if row.name in others]:
            wrong = check_outputs(setup, runner).wrong
            if wrong:
                contestants.leave_out(runner.name, f"a timed call {wrong}")


def _prepare(setup: Setup, stack: ExitStack, kind: str, limit_s: float) -> Runner:
    return start_baseline(stack, setup, kind, limit_s)
