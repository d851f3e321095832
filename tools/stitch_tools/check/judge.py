"""The check itself: draws under two sets of weights, each compared in the reference server."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from stitch_tools.check.candidate import Answer, Worker
from stitch_tools.check.options import CheckOptions
from stitch_tools.check.reference import (
    Comparison,
    DrawUnavailable,
    Expectation,
    NoDeviceError,
    ReferenceServer,
    Weights,
)
from stitch_tools.check.traced import Case
from stitch_tools.check.words import describe_build, describe_draw, describe_refusal
from stitch_tools.check.work import trace_work
from stitch_tools.errors import TaskError
from stitch_tools.models import (
    STITCHER,
    Build,
    Check,
    CheckFlag,
    CheckStatus,
    DrawResult,
    Finding,
    OracleKind,
    Program,
    ReferenceFacts,
    Task,
)
from stitch_tools.models.evidence import WorkEvidence
from stitch_tools.processes.outcome import ChildDied
from stitch_tools.processes.session import TargetSession
from stitch_tools.store import Store
from stitch_tools.worker import memory
from stitch_tools.worker.reference.kinds import STRUCTURED

Emit = Callable[[str], None] | None

_ORACLES: tuple[OracleKind, ...] = ("fp64", "fp64-cpu", "fp64-partial", "fp32-strict", "none")
_FIRST, _RELOADED = "weights-1", "weights-3"
_TIME_OVER = "the time for the check was over"
_ALWAYS_UNCHECKED = (
    "weights re-randomised to order 1",
    "writes further than 256 bytes beyond an output",
    "gradients: programs are forward only",
)


@dataclass(frozen=True)
class _End:
    """Why no further draw is made."""

    status: CheckStatus
    message: str
    flags: tuple[CheckFlag, ...] = ()
    stderr_tail: str = ""


@dataclass
class _Record:
    """What has been found so far."""

    draws: list[DrawResult] = field(default_factory=list[DrawResult])
    findings: list[Finding] = field(default_factory=list[Finding])
    flags: list[CheckFlag] = field(default_factory=list[CheckFlag])
    skipped: list[str] = field(default_factory=list[str])
    late: int = 0
    """Draws that the deadline cut off."""
    oracle: OracleKind = "fp64"
    oracle_seen: bool = False
    work: WorkEvidence | None = None

    @property
    def failures(self) -> int:
        return sum(not draw.ok for draw in self.draws)

    def note_oracle(self, expectation: Expectation) -> None:
        kind = _oracle_kind(expectation.oracle)
        if not self.oracle_seen or _ORACLES.index(kind) > _ORACLES.index(self.oracle):
            self.oracle, self.oracle_seen = kind, True
        for note in expectation.notes:
            if note not in self.skipped:
                self.skipped.append(note)


def check_program(
    task: Task,
    program: Program,
    build: Build | None,
    *,
    session: TargetSession,
    store: Store,
    facts: ReferenceFacts,
    options: CheckOptions | None = None,
    emit: Emit = None,
    deadline_s: float | None = None,
    reference: ReferenceServer | None = None,
) -> Check:
    """The program's Check; whatever the program does wrong is a status.

    Args:
        task: reference and contract.
        program: the candidate.
        build: its build; None only for KernelBench-style programs.
        session: the target interpreter.
        store: where the sources lie.
        facts: what was observed of the reference.
        options: draws and time limits.
        emit: takes sentences on the progress.
        deadline_s: a time.monotonic() value after which no further draw is begun.
        reference: a server that has the task loaded already; else one is started and ended.

    Raises:
        TaskError: the reference itself fails.
        WorkerError, SandboxError: a failure of ours or of this machine.
    """
    start = time.monotonic()
    judge = _Judge(task, program, build, session, store, facts, options or CheckOptions(), emit, deadline_s)
    end = judge.refuse_early()
    if end is None:
        try:
            end = judge.run(reference)
        except NoDeviceError as error:
            end = _End("unmeasured", f"{error.message}. {error.hint}")
    return judge.conclude(end, time.monotonic() - start)


class _Judge:
    """One check in progress."""

    def __init__(
        self,
        task: Task,
        program: Program,
        build: Build | None,
        session: TargetSession,
        store: Store,
        facts: ReferenceFacts,
        options: CheckOptions,
        emit: Emit,
        deadline_s: float | None,
    ) -> None:
        self.task, self.program, self.build = task, program, build
        self.session, self.store, self.facts = session, store, facts
        self.options, self.emit, self.deadline_s = options, emit, deadline_s
        self.record = _Record()
        self.updated = facts.mutated_buffers if task.contract.buffers == "updated" else ()
        self.ran = False
        self.suspects_cache = False
        self.rounds: list[tuple[str, list[str]]] = []

    def refuse_early(self) -> _End | None:
        """The end where nothing has to run to know it."""
        if self.build is not None and not self.build.ok:
            return _End("build_failed", describe_build(self.build))
        if self.program.format == "native" and (self.build is None or self.build.artifact is None):
            return _End("build_failed", "the program was not built")
        if self.facts.uses_rng and self.program.format == "native":
            return _End(
                "unmeasured",
                "the reference draws random numbers in forward, which a native program cannot repeat yet",
                ("unsupported_rng",),
            )
        return None

    def run(self, warm: ReferenceServer | None) -> _End | None:
        """Everything that needs processes; None when all went through."""
        with ExitStack() as stack:
            timeout_s = self.options.reference_timeout_s
            reference = warm or stack.enter_context(
                ReferenceServer(self.session, self.task, self.store, timeout_s=timeout_s)
            )
            reference.revive()
            worker = stack.enter_context(
                Worker(
                    self.session,
                    self.task,
                    self.program,
                    self.build,
                    self.store,
                    memory_bytes=self.options.memory_bytes,
                )
            )
            self.ran = True
            try:
                return self._load_and_draw(reference, worker)
            except ChildDied as death:
                return _end_of_worker(death)

    def _load_and_draw(self, reference: ReferenceServer, worker: Worker) -> _End | None:
        answer = worker.load(self.options.init_timeout_s)
        if not answer.ok:
            return _end_of_load(answer)
        self.rounds = self._schedule()
        while self.rounds and self.record.failures < self.options.max_failures:
            label, kinds = self.rounds.pop(0)
            if self._is_late():
                self._leave_out(label, kinds)
                continue
            weights = reference.set_weights()
            try:
                if label == _RELOADED:
                    end = self._reload(reference, worker, weights, kinds)
                else:
                    answer = worker.init(weights, self.options.init_timeout_s)
                    end = self._draws(reference, worker, label, kinds) if answer.ok else _end_of_step(answer)
            finally:
                weights.close()
            if end is not None:
                return end
        if self.options.trace and not self.record.failures:
            self._trace_work(reference, worker)
        return None

    def _reload(
        self, reference: ReferenceServer, worker: Worker, weights: Weights, kinds: list[str]
    ) -> _End | None:
        """Draws after loading weights in place. What goes wrong under that alone is a note."""
        answer = worker.reload(weights, self.options.init_timeout_s)
        if not answer.ok:
            self._note("weights_not_reloadable", answer.message)
            return None
        before, known = self.record.failures, len(self.record.draws)
        end = self._draws(reference, worker, _RELOADED, kinds)
        if end is None and not before and self.record.failures:
            # A constructor may prepack its weights, as a native program's init does.
            wrong = next(draw for draw in self.record.draws if not draw.ok)
            self._note(
                "weights_not_reloadable", f"after loading other weights in place: {describe_draw(wrong)}"
            )
            del self.record.draws[known:]
        return end

    def _trace_work(self, reference: ReferenceServer, worker: Worker) -> None:
        if self._is_late():
            self.record.skipped.append(f"who did the work: {_TIME_OVER}")
            return
        case = Case(
            self.session, self.task, self.program, self.build, self.store, self.options, self.updated
        )
        traced = trace_work(case, reference, worker)
        self.record.work = traced.evidence
        self.record.findings += traced.findings
        self.record.flags += traced.flags
        self.record.skipped += traced.skipped

    def _schedule(self) -> list[tuple[str, list[str]]]:
        options, contract = self.options, self.task.contract
        first = [f"own-{number + 1}" for number in range(options.own_draws)]
        if options.structured:
            first.extend(STRUCTURED)
        if options.batch_probe and contract.shape_policy == "batch-probe":
            first.append("batch-probe")
        rounds = [(_FIRST, first)]
        if options.second_weights:
            rounds.append(
                ("weights-2", [f"own-{options.own_draws + 1}", *(["scaled"] if options.structured else [])])
            )
            if self.program.format == "kernelbench":
                rounds.append((_RELOADED, [f"own-{options.own_draws + 2}"]))
        return rounds

    def _draws(self, reference: ReferenceServer, worker: Worker, label: str, kinds: list[str]) -> _End | None:
        for position, kind in enumerate(kinds):
            if self._is_late():
                self._leave_out(label, kinds[position:])
                return None
            name = _draw_name(label, kind)
            try:
                end = self._draw(reference, worker, kind, name)
            except DrawUnavailable as reason:
                self.record.skipped.append(f"draw {name}: {reason}")
                continue
            except TaskError as error:
                if kind.startswith("own"):
                    raise
                # A draw of ours that the reference does not survive says nothing about the program.
                self.record.skipped.append(f"draw {name}: {error.message[:300]}")
                reference.revive()
                # The new server has no weights yet: the rest becomes a round of its own.
                self.rounds.insert(0, (label, kinds[position + 1 :]))
                return None
            if end is not None:
                return end
            if self.record.failures >= self.options.max_failures:
                return None
        return None

    def _is_late(self) -> bool:
        """Whether the deadline is over; one draw is always made."""
        return self.deadline_s is not None and time.monotonic() > self.deadline_s and bool(self.record.draws)

    def _leave_out(self, label: str, kinds: list[str]) -> None:
        self.record.late += len(kinds)
        self.record.skipped.extend(f"draw {_draw_name(label, kind)}: {_TIME_OVER}" for kind in kinds)

    def _draw(self, reference: ReferenceServer, worker: Worker, kind: str, name: str) -> _End | None:
        inputs = reference.make_draw(kind, shared=name == "own-1")
        try:
            expectation = reference.expect(self.updated)
            self.record.note_oracle(expectation)
            outputs_fd = memory.create(expectation.nbytes)
            try:
                reference.prime(outputs_fd, expectation)
                timeout_s = max(self.options.call_timeout_s, 50 * expectation.reference_s)
                answer = worker.run(
                    inputs, outputs_fd, expectation, reuse=name == "own-2", timeout_s=timeout_s
                )
                if not answer.ok:
                    return self._judge_refusal(answer, name)
                comparison = reference.compare(outputs_fd, expectation, answer.blob)
            finally:
                os.close(outputs_fd)
        finally:
            inputs.close()
        return self._judge_draw(name, comparison)

    def _judge_refusal(self, answer: Answer, name: str) -> _End | None:
        if answer.status == "unsupported" and name == "batch-probe":
            self.record.flags.append("specialized")
            self.record.skipped.append(
                f"draw {name}: the program refuses another leading size: {answer.message}"
            )
            return None
        self.record.draws.append(DrawResult(draw=name, ok=False, problem=describe_refusal(answer)))
        if answer.status in ("other_outputs", "unsupported"):
            return _End("incorrect", f"draw {name}: {describe_refusal(answer)}")
        return _end_of_step(answer)

    def _judge_draw(self, name: str, comparison: Comparison) -> _End | None:
        problem: str | None = None
        if comparison.overrun:
            problem = "memory beside the outputs was overwritten"
            self._note("out_of_bounds_write", f"draw {name}: {problem}", fatal=False)
        elif comparison.inputs_intact is False:
            problem = "the program modified its inputs"
            self._note("inputs_modified", f"draw {name}: {problem}", fatal=False)
        wrong = any(row.problem for row in comparison.outputs)
        if wrong and comparison.same_generator is False and self.facts.uses_rng:
            message = "the program does not draw random numbers as the reference does: nothing to compare"
            return _End("unmeasured", message, ("unsupported_rng",))
        self.suspects_cache = self.suspects_cache or (wrong and name == "own-2" and not self.record.failures)
        result = DrawResult(
            draw=name, ok=not wrong and problem is None, outputs=comparison.outputs, problem=problem
        )
        self.record.draws.append(result)
        if self.emit is not None:
            self.emit(f"check: {describe_draw(result)}")
        return None

    def _note(self, rule: str, message: str, *, fatal: bool = False) -> None:
        self.record.findings.append(
            Finding(rule=rule, severity="fatal" if fatal else "note", message=message)
        )

    def _accept(self) -> _End:
        record = self.record
        agreed = f"{len(record.draws)} draws agree with the {record.oracle} oracle"
        if not record.late:
            return _End("accepted", agreed)
        missing = f"{record.late} of {len(record.draws) + record.late} draws were not made, {_TIME_OVER}"
        return _End("accepted", f"{agreed}; {missing}", ("incomplete",))

    def conclude(self, end: _End | None, wall_s: float) -> Check:
        """The Check that all of this amounts to."""
        record = self.record
        failed = [draw for draw in record.draws if not draw.ok]
        if end is None and failed:
            hint = (
                "; right on the first draw and wrong on the second, in the same memory: results may be cached"
                if self.suspects_cache
                else ""
            )
            end = _End("incorrect", describe_draw(failed[0]) + hint)
        if end is None:
            end = self._accept()
        flags: list[CheckFlag] = [*record.flags, *end.flags]
        if self.program.format == "kernelbench" and self.program.author == STITCHER:
            # The stitcher writes Python only where nodes are left to PyTorch, whatever their share.
            flags.append("partial")
        if not self.facts.depends_on_inputs and end.status == "accepted":
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
            oracle=record.oracle if record.oracle_seen else "none",
            work=record.work,
            sandbox=self.session.sandbox_level if self.ran else None,
            message=end.message,
            not_checked=(*record.skipped, *_ALWAYS_UNCHECKED) if self.ran else (),
            stderr_tail=end.stderr_tail,
            wall_s=wall_s,
        )


def _draw_name(label: str, kind: str) -> str:
    return kind if label == _FIRST else f"{label}/{kind}"


def _oracle_kind(name: str) -> OracleKind:
    for kind in _ORACLES:
        if kind == name:
            return kind
    return "none"


def _end_of_worker(death: ChildDied) -> _End:
    outcome = death.outcome
    status: CheckStatus = "crashed"
    if outcome.kind == "timed_out":
        status = "timed_out"
    elif outcome.kind == "out_of_memory":
        status = "out_of_memory"
    return _End(status, outcome.describe(), stderr_tail=outcome.stderr_tail[-4000:])


def _end_of_load(answer: Answer) -> _End:
    if answer.status == "not_loadable":
        return _End("build_failed", f"the program cannot be loaded: {answer.message}")
    return _end_of_step(answer)


def _end_of_step(answer: Answer) -> _End:
    if answer.status == "not_representable":
        return _End("unmeasured", answer.message)
    status: CheckStatus = "out_of_memory" if answer.status == "out_of_memory" else "crashed"
    return _End(status, f"the program failed in {describe_refusal(answer)}")
