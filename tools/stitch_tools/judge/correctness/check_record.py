"""What a check has found so far, and the Check that it amounts to."""

import copy
from dataclasses import dataclass, field

from stitch_tools.judge.correctness.check_wording import (
    describe_coarser,
    describe_draw,
    describe_refusal,
)
from stitch_tools.judge.correctness.draw_schedule import DrawGroup, Passed, least_decided, uncovered_subjects
from stitch_tools.judge.verdict import settle_status
from stitch_tools.models.evidence import WorkEvidence
from stitch_tools.models.verdict import (
    CheckFlag,
    CheckStatus,
    DrawResult,
    Finding,
    OracleKind,
    ReferenceTolerance,
    Sensitivity,
    Severity,
)
from stitch_tools.protocol.memory_faults import says_out_of_memory
from stitch_tools.protocol.messages_reference import Agreement
from stitch_tools.run.candidate_worker import Answer
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.last_words import native_call, without_modules
from stitch_tools.run.reference_server import Expectation

TIME_OVER = "the time for the check was over"
_ORACLES: tuple[OracleKind, ...] = ("fp64", "fp64-cpu", "fp64-partial", "fp32-strict", "none")
_OF_DRAWS = (
    "draws",
    "skipped",
    "undecided",
    "decided",
    "late",
    "oracle",
    "passed",
    "agreements",
)
"""Fields of a Record that draws fill."""
_GROUPS: dict[DrawGroup, str] = {
    "values": "values of the judge",
    "sizes": "sizes of the judge",
    "weights": "weights of the judge",
    "variants": "variants of the contract",
}
_RULE = "KernelBench: torch.allclose with the reference's output"


@dataclass(frozen=True)
class End:
    """Why no further draw is made."""

    status: CheckStatus
    message: str
    flags: tuple[CheckFlag, ...] = ()
    stderr_tail: str = ""
    agreed: bool = False
    """Whether all draws that were made agree, and nothing else speaks against the program."""


@dataclass
class Record:
    """Everything that a check collects."""

    draws: list[DrawResult] = field(default_factory=list[DrawResult])
    findings: list[Finding] = field(default_factory=list[Finding])
    flags: list[CheckFlag] = field(default_factory=list[CheckFlag])
    skipped: list[str] = field(default_factory=list[str])
    undecided: list[str] = field(default_factory=list[str])
    """Draws with outputs on which the reference itself is too far off to tell right from wrong."""
    decided: dict[DrawGroup, list[bool]] = field(default_factory=dict[DrawGroup, list[bool]])
    """Of each draw with something made up, whether all of it was decided."""
    as_constructed: bool = False
    """Whether the program is right with what its constructor makes of weights, and not with loaded ones."""
    late: int = 0
    """Draws that the deadline cut off."""
    oracle: OracleKind | None = None
    """The weakest one that was used; None before the first draw."""
    passed: Passed = field(default_factory=Passed)
    sensitivity: tuple[Sensitivity, ...] | None = None
    agreements: list[Agreement] = field(default_factory=list[Agreement])
    """What KernelBench's rule says of each own draw."""
    work: WorkEvidence | None = None
    memory_short: bool = False
    """Whether anything failed, or was judged otherwise, because memory was missing."""

    @property
    def failures(self) -> int:
        """Wrong draws."""
        return sum(not draw.ok for draw in self.draws)

    def note(self, rule: str, message: str, severity: Severity = "note") -> None:
        """Add a finding, once a rule and message."""
        finding = Finding(rule=rule, severity=severity, message=message)
        if finding not in self.findings:
            self.findings.append(finding)

    def leave_undecided(self, draw: str, words: str) -> None:
        """Say which part of a draw was not compared, and why."""
        self.undecided.append(draw)
        self.skipped.append(f"draw {draw}: undecided: {words}")

    def count(self, group: DrawGroup | None, *, decided: bool) -> None:
        """Count a draw with something made up about it."""
        if group is not None:
            self.decided.setdefault(group, []).append(decided)

    def mark(self) -> "Record":
        """All as it is now, to `take_back` to."""
        return copy.deepcopy(self)

    def take_back(self, mark: "Record") -> None:
        """Forget the draws since the mark, and all that was counted of them; findings stay."""
        kept = copy.deepcopy(mark)
        for name in _OF_DRAWS:
            setattr(self, name, getattr(kept, name))

    def thin_groups(self) -> list[str]:
        """What is said of groups of draws of which too few could be decided."""
        return [
            f"{sum(rows)} of {len(rows)} draws with {_GROUPS[group]} were decided"
            for group, rows in self.decided.items()
            if not all(rows) and sum(rows) < least_decided(group, len(rows))
        ]

    def note_undecided(self) -> None:
        """Add the finding that sums up what was left undecided."""
        if self.undecided:
            rows = ", ".join(dict.fromkeys(self.undecided))
            thin = "".join(f"; {words}" for words in self.thin_groups())
            self.note("undecided", f"the reference's own rounding decides nothing on draws {rows}{thin}")

    def note_conditions(self, expectation: Expectation, answer: Answer) -> None:
        """Remember the weakest oracle that was used, and what was not as it ought to be, with the reasons."""
        kinds = (_oracle_kind(expectation.oracle), self.oracle or _ORACLES[0])
        self.oracle = max(kinds, key=_ORACLES.index)
        self.memory_short |= expectation.memory_short
        notes = [*expectation.notes]
        if answer.unspoiled:
            notes.append(f"reads of shared memory that nobody wrote: {answer.unspoiled}")
        self.skipped += [note for note in notes if note not in self.skipped]

    def repeats_bitwise(self) -> bool | None:
        """Whether all repeated draws gave the same bits; None where none was repeated."""
        known = [draw.repeats_bitwise for draw in self.draws if draw.repeats_bitwise is not None]
        return all(known) if known else None

    def is_weak(self, depends_on_inputs: bool) -> bool:
        """Whether a pass rests on draws that hardly depend on inputs or weights, or too few are decided."""
        if self.thin_groups():
            return True
        if self.sensitivity is None:
            return not depends_on_inputs
        return not any(row.subject == "inputs" for row in self.sensitivity) or bool(
            uncovered_subjects(self.sensitivity, self.passed)
        )

    def reference_tolerance(self) -> ReferenceTolerance | None:
        """KernelBench's verdict over the own draws."""
        if not self.agreements:
            return None
        gaps: list[float | None] = [row.largest_difference for row in self.agreements]
        known = [gap for gap in gaps if gap is not None]
        tolerance = max(row.tolerance for row in self.agreements)
        return ReferenceTolerance(
            rule=_RULE,
            atol=tolerance,
            rtol=tolerance,
            ok=all(row.ok for row in self.agreements),
            draws=len(self.agreements),
            largest_difference=max(known) if len(known) == len(gaps) else None,
        )

    def drop_what_loading_says(self) -> None:
        """Forget that the text shows no ModelNew: why the file cannot be loaded says more."""
        self.findings = [row for row in self.findings if row.rule != "entry_not_found"]

    def end(self, end: End | None) -> End:
        """The end that all of this amounts to; `end` is what stopped the draws, None where nothing did."""
        end = end or self._end_of_draws()
        status, reasons = settle_status(end.status, end.message, self.findings)
        if status == end.status:
            return end
        return End(status, reasons[0].message, stderr_tail=end.stderr_tail)

    def _end_of_draws(self) -> End:
        failed = next((draw for draw in self.draws if not draw.ok), None)
        if failed is not None:
            return End("incorrect", describe_coarser(self.draws) + describe_draw(failed))
        agreed = f"{len(self.draws)} draws agree with the {self.oracle or _ORACLES[0]} oracle"
        if self.undecided:
            agreed += f", {len(set(self.undecided))} are undecided at least in part"
        if not self.late:
            return End("accepted", agreed, agreed=True)
        missing = f"{self.late} of {len(self.draws) + self.late} draws were not made, {TIME_OVER}"
        return End("accepted", f"{agreed}; {missing}", ("incomplete",), agreed=True)


def _oracle_kind(name: str) -> OracleKind:
    for kind in _ORACLES:
        if kind == name:
            return kind
    return "none"


def end_of_worker(death: ChildDied, at: str = "") -> End:
    """The end of a program whose process did not survive; `at` says what it was asked for."""
    outcome = death.outcome
    status: CheckStatus = "crashed"
    if outcome.kind == "timed_out":
        status = "timed_out"
    elif outcome.kind == "out_of_memory":
        status = "out_of_memory"
    call = native_call(outcome.output_tail) if outcome.kind == "crashed" else None
    message = ", ".join(filter(None, (outcome.describe(), at, call and f"inside {call}")))
    return End(status, message, stderr_tail=without_modules(outcome.output_tail)[-4000:])


def end_of_load(answer: Answer) -> End:
    """The end of a program that could not be loaded."""
    if answer.status == "not_loadable":
        return End("build_failed", f"the program cannot be loaded: {answer.message}")
    return end_of_step(answer)


def end_of_step(answer: Answer) -> End:
    """The end of a program that failed in a step."""
    if answer.status == "not_representable":
        return End("unmeasured", answer.message)
    # A native program has one number for all that its calls of the GPU's runtime answer.
    no_memory = answer.status == "out_of_memory" or says_out_of_memory(answer.message)
    status: CheckStatus = "out_of_memory" if no_memory else "crashed"
    return End(status, f"the program failed in {describe_refusal(answer)}")
