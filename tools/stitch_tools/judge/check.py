"""The check itself: draws under several sets of weights, each compared in the reference server."""

import re
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from stitch_tools.errors import TaskError
from stitch_tools.judge.borders import compare_borders, describe_borders
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.correctness.check_record import (
    TIME_OVER,
    End,
    Record,
    end_of_load,
    end_of_step,
    end_of_worker,
)
from stitch_tools.judge.correctness.check_wording import UNRACED, describe_build, describe_draw
from stitch_tools.judge.correctness.draw_ruling import Ruling
from stitch_tools.judge.correctness.draw_runner import DrawRunner
from stitch_tools.judge.correctness.draw_schedule import (
    RELOADED,
    DrawRequest,
    Round,
    group_of,
    missing_rounds,
    ordinary_rounds,
)
from stitch_tools.judge.correctness.reference_variation import describe_variation
from stitch_tools.judge.gpu_health import canary_for, sound_gpu, wedged
from stitch_tools.judge.memory_turns import CheckAttempt, check_in_turn
from stitch_tools.judge.source import scan_program
from stitch_tools.judge.trial import Trial
from stitch_tools.judge.work.traced_worker import start_worker, watched_worker
from stitch_tools.judge.work.watched_ahead import WatchedAhead
from stitch_tools.judge.work.work_evidence import trace_work
from stitch_tools.machine.device_memory import DeviceMemory, device_memory
from stitch_tools.machine.devices import usable_cpus
from stitch_tools.models.program import STITCHER
from stitch_tools.models.verdict import REFERENCE_VARIES, Check, CheckFlag, DrawResult, Finding
from stitch_tools.protocol.messages_reference import WeightsMade
from stitch_tools.run.candidate_worker import Answer, kept_buffers
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.extension_builds import names_in_python
from stitch_tools.run.reference_server import (
    DrawUnavailable,
    DrawUndecided,
    NoDeviceError,
    ReferenceMemoryError,
    ReferenceServer,
)

_COUNT_EVERY_S = 5.0
"""Seconds between two sentences that count right draws."""

_COMPILES = re.compile(rb"cpp_extension|subprocess|tvm_ffi")
_CPUS_FOR_TWO = 4
"""Fewer, and two compilers at once would make the first answer late."""

_LOADED = (
    "its constructor makes other weights from the same seed, or none:"
    " it was judged with the reference's, given by load_state_dict"
)
_ALWAYS_UNCHECKED = (
    "writes further than 64 KiB beyond an output",
    "gradients: programs are forward only",
)


def check_program(
    trial: Trial, options: CheckOptions | None = None, memory: DeviceMemory | None = None
) -> Check:
    """The program's Check; whatever the program does wrong is a status.

    Args:
        trial: the program beside its reference.
        options: draws and time limits.
        memory: what it shares with other jobs; by default that of the task's device.

    Raises:
        EnvironmentMissingError: the GPU does not answer, or did not after an earlier program.
        MemoryHeldError: other processes hold the memory that the reference needs.
        TaskError: the reference itself fails.
        WorkerError, SandboxError: a failure of ours or of this machine.
    """
    start, options = time.monotonic(), options or CheckOptions()
    reader = _Judge(trial, options)
    end = reader.refuse_early()
    if end is not None or reader.reads_fatal():
        return reader.conclude(end, time.monotonic() - start)
    bounded = options.memory_bytes is not None or (trial.reference is not None and trial.reference.limited)
    check = check_in_turn(
        trial,
        memory or device_memory(trial.task.target),
        lambda: _attempt(trial, options, tuple(reader.record.findings), start),
        # What a caller bounds is memory of the host.
        limited=bounded and not trial.on_gpu,
    )
    if check.status != "incorrect" or not options.borders:
        return check
    borders = compare_borders(trial, options, check_program)
    message = check.message + describe_borders(borders)
    return check.model_copy(update={"borders": borders, "message": message})


def _attempt(
    trial: Trial, options: CheckOptions, findings: tuple[Finding, ...], start_s: float
) -> CheckAttempt:
    """Run the check once, with what its text showed."""
    judge = _Judge(trial, options)
    judge.record.findings += findings
    canary = canary_for(trial.session, trial.task.target)
    try:
        with sound_gpu(canary):
            try:
                end = judge.run()
            except NoDeviceError as error:
                end = End("unmeasured", f"{error.message}. {error.hint}")
    except ReferenceMemoryError as error:
        return CheckAttempt(error, memory_short=True)
    judge.record.findings += wedged(canary, end)
    check = judge.conclude(end, time.monotonic() - start_s)
    return CheckAttempt(check, judge.record.memory_short or check.status == "out_of_memory")


class _Judge:
    """One check in progress."""

    def __init__(self, trial: Trial, options: CheckOptions) -> None:
        self.trial, self.options = trial, options
        self.task, self.program, self.build = trial.task, trial.program, trial.build
        self.session, self.store, self.facts = trial.session, trial.store, trial.facts
        self.record = Record()
        sizes_count = any(row.isdigit() for row in self.task.contract.variants)
        self.ruling = Ruling(self.record, self.facts.uses_rng, sizes_count, self._tell)
        self.reference: ReferenceServer | None = None  # where the program ran, beside it
        self.watched: WatchedAhead | None = None
        """The worker that will be traced, where it is started beside the draws."""
        self.rounds: list[Round] = []
        self.told_s = time.monotonic()
        self.at = ""
        """What the program's process is asked for now."""

    def refuse_early(self) -> End | None:
        """The end where nothing has to run to know it."""
        if self.build is not None and not self.build.ok:
            return End("build_failed", describe_build(self.build))
        if self.program.format == "native" and (self.build is None or self.build.artifact is None):
            return End("build_failed", "the program was not built")
        if self.facts.uses_rng and self.program.format == "native":
            return End(
                "unmeasured",
                "the reference draws random numbers in forward, which a native program cannot repeat yet",
                ("unsupported_rng",),
            )
        return None

    def reads_fatal(self) -> bool:
        """Whether the program's text alone shows what no honest program does; such a program is not run."""
        if not self.options.static:
            return False
        source = next((file for file in self.task.files if file.path == self.task.main), None)
        findings = scan_program(
            {file.path: self.store.get(file.sha256) for file in self.program.files},
            format=self.program.format,
            main=self.program.main,
            reference_source=None if source is None else self.store.get(source.sha256),
        )
        self.record.findings += findings
        return any(row.severity == "fatal" for row in findings)

    def run(self) -> End | None:
        """Everything that needs processes; None when all went through."""
        with ExitStack() as stack:
            reference = self.trial.reference or stack.enter_context(
                ReferenceServer(self.session, self.task, self.store)
            )
            reference.revive()
            worker = stack.enter_context(
                start_worker(self.trial, self.options, kept_buffers(self.task.contract, self.facts))
            )
            self.reference = reference
            try:
                runner = stack.enter_context(DrawRunner(reference, worker, self.options, self.trial.updated))
                self._watch_ahead(stack, reference)
                return self._load_and_draw(runner)
            except ChildDied as death:
                return end_of_worker(death, self.at)

    def _watch_ahead(self, stack: ExitStack, reference: ReferenceServer) -> None:
        """Have the worker that will be traced start beside the draws, where that takes long.

        An extension is compiled in each process, and begins at once. On a GPU a process waits for its context
        and its profiler: it begins when the first draw was right, since wrong programs are not traced.
        """
        cpus = self.options.cpus or usable_cpus()
        compiles = names_in_python(self.program, self.store, _COMPILES)
        if not self.options.trace or not (compiles or self.trial.on_gpu) or cpus < _CPUS_FOR_TWO:
            return
        start = partial(watched_worker, self.trial, self.options, reference)
        self.watched = stack.enter_context(WatchedAhead(start))
        if compiles:
            self.watched.begin()

    def _load_and_draw(self, runner: DrawRunner) -> End | None:
        if self.program.format == "kernelbench":
            self.trial.say("loading the program (it may compile an extension)")
        self.at = "while it was loaded"
        answer = runner.worker.load(self.options.init_timeout_s)
        if not answer.ok:
            self.record.drop_what_loading_says()
            return end_of_load(answer)
        self.rounds = ordinary_rounds(self.options, self.task.contract, self.program.format)
        while self.record.failures < self.options.max_failures:
            if not self.rounds:
                self._look_for_reactions(runner)
            if not self.rounds:
                break
            end = self._round(runner, self.rounds.pop(0))
            if end is not None:
                return end
        if self.options.trace and not self.record.failures:
            self._trace_work(runner)
        return None

    def _look_for_reactions(self, runner: DrawRunner) -> None:
        """Measure once how the reference reacts, and add rounds where no draw so far depended enough."""
        if not self.options.sensitivity or self.record.sensitivity is not None or self.record.failures:
            return
        if self._is_late():
            self.record.skipped.append(f"sensitivity of the task: {TIME_OVER}")
            return
        self.record.sensitivity = runner.reference.sensitivity()
        self.rounds = missing_rounds(self.record.sensitivity, self.record.passed, self.options)

    def _round(self, runner: DrawRunner, round_: Round) -> End | None:
        if self._is_late():
            self._leave_out(round_.draws)
            return None
        probe = round_.probe
        # A `ModelNew` makes its own: a GPU need not hold them once more for the rare reload.
        on_host = self.program.format != "native"
        try:
            weights = runner.reference.set_weights(gain=probe.gain, positive=probe.positive, on_host=on_host)
        except DrawUnavailable as reason:
            self.record.skipped.append(f"weights of order 1: {reason}")
            return None
        self.at = "while it got its weights"
        try:
            if round_.label == RELOADED:
                return self._reloaded(runner, round_, weights)
            if probe.gain is not None:
                return self._order_one(runner, round_, weights)
            answer = self._init(runner, weights)
            return self._constructed(runner, round_, weights, answer) if answer.ok else end_of_step(answer)
        finally:
            weights.close()

    def _reloaded(self, runner: DrawRunner, round_: Round, weights: WeightsMade) -> End | None:
        """Draws after loading weights in place. What goes wrong under that alone is a note."""
        answer = runner.worker.reload(weights, self.options.init_timeout_s)
        if not answer.ok:
            self.record.note("weights_not_reloadable", answer.message)
            return None
        before, mark = self.record.failures, self.record.mark()
        end = self._draws(runner, round_)
        if before or (end is None and not self.record.failures):
            return end
        # A constructor may prepack its weights, as a native program's init does.
        message = end.message if end is not None else self._first_wrong_draw()
        self.record.note("weights_not_reloadable", f"after loading other weights in place: {message}")
        self.record.take_back(mark)
        return None

    def _init(self, runner: DrawRunner, weights: WeightsMade) -> Answer:
        load = not self.record.as_constructed
        return runner.worker.init(weights, self.options.init_timeout_s, load=load)

    def _constructed(
        self, runner: DrawRunner, round_: Round, weights: WeightsMade, answer: Answer
    ) -> End | None:
        """Draws after `init`. Where loaded weights fail, what the constructor made of them counts."""
        before, mark = self.record.failures, self.record.mark()
        end = self._draws(runner, round_)
        if not answer.loaded:
            return end
        if end is None and self.record.failures == before:
            self.record.note("weights_loaded", _LOADED)
            return None
        # It may have folded one weight into another, which has the old one's name.
        wrong = self.record.mark()
        self.record.take_back(mark)
        plain = runner.worker.init(weights, self.options.init_timeout_s, load=False)
        if plain.ok and self._draws(runner, round_) is None and self.record.failures == before:
            self.record.as_constructed = True
            return None
        self.record.take_back(wrong)
        return end

    def _order_one(self, runner: DrawRunner, round_: Round, weights: WeightsMade) -> End | None:
        """Draws under weights of order 1, made by the constructor or else loaded by name."""
        made = self._init(runner, weights)
        if made.ok:
            return self._constructed(runner, round_, weights, made)
        if self.program.format == "native":
            return end_of_step(made)
        # The constructor fails under such weights: a plain instance is loaded with them.
        plain = runner.worker.init(replace(weights, scale=None), self.options.init_timeout_s)
        if plain.loaded:
            return self._draws(runner, round_)
        # It is not shown to be right under any weights but its own.
        end = end_of_step(made)
        status = "incorrect" if made.status == "unsupported" else end.status
        return replace(end, message=f"{end.message}, with other weights than its own", status=status)

    def _first_wrong_draw(self) -> str:
        return describe_draw(next(draw for draw in self.record.draws if not draw.ok))

    def _trace_work(self, runner: DrawRunner) -> None:
        if self._is_late():
            self.record.skipped.append(f"who did the work: {TIME_OVER}")
            return
        self.at = "while its work was traced"
        watched = self.watched.take() if self.watched else None
        trace_work(self.record, self.trial, self.options, runner.reference, watched)

    def _draws(self, runner: DrawRunner, round_: Round) -> End | None:
        ordinary = round_.probe.gain is None
        for position, draw in enumerate(round_.draws):
            if self._is_late():
                self._leave_out(round_.draws[position:])
                return None
            self.at = f"in draw {draw.name}"
            known, doubts = len(self.record.draws), len(self.record.undecided)
            try:
                end = self.ruling.on(draw, runner.observe(draw))
            except DrawUnavailable as reason:
                self._go_without(round_, draw, reason)
                continue
            except TaskError as error:
                if draw.own and ordinary:
                    raise
                # A draw of ours that the reference does not survive says nothing about the program.
                self.record.memory_short |= isinstance(error, ReferenceMemoryError)
                self.record.skipped.append(f"draw {draw.name}: {error.message[:300]}")
                runner.reference.revive()
                # The new server has no weights yet: the rest becomes a round of its own.
                self.rounds.insert(0, replace(round_, draws=round_.draws[position + 1 :]))
                return None
            if end is not None:
                return end
            if self.record.failures >= self.options.max_failures:
                return None
            if doubts < len(self.record.undecided):
                self._count_undecided(round_, draw)
            elif len(self.record.draws) > known and self.record.draws[-1].ok:
                self._note_passed(round_, draw)
        return None

    def _go_without(self, round_: Round, draw: DrawRequest, reason: DrawUnavailable) -> None:
        if isinstance(reason, DrawUndecided):
            self.record.leave_undecided(draw.name, str(reason))
            self._count_undecided(round_, draw)
        else:
            self.record.skipped.append(f"draw {draw.name}: {reason}")
            self._fall_back(round_)

    def _fall_back(self, round_: Round) -> None:
        """Try milder weights where these cannot be judged, or not wholly."""
        if round_.fallback is None:
            return
        milder = replace(round_, probe=round_.fallback, fallback=None)
        if milder not in self.rounds:
            self.rounds.insert(0, milder)

    def _count_undecided(self, round_: Round, draw: DrawRequest) -> None:
        self.record.count(group_of(draw, round_), decided=False)
        self._fall_back(round_)

    def _note_passed(self, round_: Round, draw: DrawRequest) -> None:
        if self.watched is not None:
            self.watched.begin()
        self.record.count(group_of(draw, round_), decided=True)
        self.record.passed.weight_sets.add(round_.label)
        if round_.probe.gain is not None:
            self.record.passed.probes.add(round_.label)
        elif draw.own:
            self.record.passed.own_inputs += 1

    def _always_unchecked(self) -> tuple[str, ...]:
        # Repeated calls find a race that shows now and then at best.
        return (*((UNRACED,) if self.trial.on_gpu else ()), *_ALWAYS_UNCHECKED)

    def _is_late(self) -> bool:
        """Whether the deadline is over; one draw is always made."""
        return self.trial.is_late and bool(self.record.draws)

    def _leave_out(self, draws: tuple[DrawRequest, ...]) -> None:
        self.record.late += len(draws)
        self.record.skipped.extend(f"draw {draw.name}: {TIME_OVER}" for draw in draws)

    def _tell(self, result: DrawResult) -> None:
        """Say what is wrong at once; right draws are counted, every few seconds."""
        if not result.ok:
            self.trial.say(f"check: {describe_draw(result)}")
        elif time.monotonic() - self.told_s > _COUNT_EVERY_S:
            self.told_s = time.monotonic()
            self.trial.say(f"check: {len(self.record.draws) - self.record.failures} draws right so far")

    def conclude(self, end: End | None, wall_s: float) -> Check:
        """The Check that all of this amounts to."""
        record = self.record
        end = record.end(end)
        record.note_undecided()
        varies = describe_variation(record.draws, self.facts) if end.status == "incorrect" else None
        if varies is not None:
            record.note(REFERENCE_VARIES, varies)
            end = replace(end, message=f"{varies} ({end.message})")
        if self.facts.mode_warning:
            record.note("train_mode", self.facts.mode_warning)
        flags: list[CheckFlag] = [*record.flags, *end.flags]
        if self.program.format == "kernelbench" and self.program.author == STITCHER:
            # The stitcher writes Python only where nodes are left to PyTorch, whatever their share.
            flags.append("partial")
        # Draws that all agree say little where outputs hardly depend on what went in.
        if end.agreed and record.is_weak(self.facts.depends_on_inputs):
            flags.append("weak")
        if self.task.contract.relaxed:
            flags.append("relaxed")
        return Check(
            program_id=self.program.program_id,
            task_id=self.task.task_id,
            status=end.status,
            flags=tuple(dict.fromkeys(flags)),
            findings=tuple(record.findings),
            draws=tuple(record.draws),
            oracle=record.oracle or "none",
            repeats_bitwise=record.repeats_bitwise(),
            sensitivity=record.sensitivity or (),
            reference_tolerance=record.reference_tolerance(),
            work=record.work,
            sandbox=self.session.sandbox_level if self.reference else None,
            plane=self.reference.plane if self.reference else None,
            message=end.message,
            not_checked=(*record.skipped, *self._always_unchecked()) if self.reference else (),
            stderr_tail=end.stderr_tail,
            wall_s=wall_s,
        )
