"""The attempts of a run: one program each, by whoever it was written, with what is known of it."""

from stitch_planner.runs.run_events import (
    BenchFinished,
    BuildFinished,
    CheckFinished,
    ProgramEvidence,
    ProgramWritten,
    ReviewFinished,
)
from stitch_tools.models.base import Fact

EVIDENCE: tuple[str, ...] = ("build", "check", "bench")
"""The fields of an Attempt that the steps fill, in their order."""


class Attempt(Fact):
    """One program of a run. A field is None until its event was seen."""

    program: ProgramWritten
    round: int
    """Place in the run: 0 for its first program. Names the folder below `rounds`."""
    build: BuildFinished | None = None
    check: CheckFinished | None = None
    bench: BenchFinished | None = None
    review: ReviewFinished | None = None
    """Only of programs in runs with a model."""
    status: str = "open"
    """CheckStatus of the verdict; "open" before there is one."""
    counts: bool = False
    """Whether the program may be claimed, as the newest evidence says. False where the events hold no
    verdict, until `with_verdicts` made it."""
    last_event: int
    """Number of the newest event about it."""
    lost: bool = False
    """Whether the store no longer has its files whole: it has to be written anew."""

    @property
    def program_id(self) -> str:
        """The program's id."""
        return self.program.program_id

    @property
    def author(self) -> str:
        """Who wrote the program."""
        return self.program.author

    @property
    def accepted(self) -> bool:
        """Whether the program is correct, counted or not."""
        return self.status == "accepted"

    @property
    def open_step(self) -> str | None:
        """Name of the first instrument that did not look at the program yet; None: all did."""
        return next((name for name in EVIDENCE if getattr(self, name) is None), None)

    @property
    def safe_speedup(self) -> float | None:
        """Lower end of the interval of its speedup over eager; None where nothing was measured."""
        return self.bench.safe_speedup if self.bench else None

    def gain_over(self, other: "Attempt") -> float | None:
        """Speed over that of another program, both as multiples of eager beside them; None: not measured."""
        own, theirs = self.bench, other.bench
        if own is None or theirs is None:
            return None
        if own.safe_speedup is not None and theirs.safe_speedup:
            return own.safe_speedup / theirs.safe_speedup
        # Times of a busy machine are compared only by CPU time, on both sides.
        if own.cpu_speedup is not None and theirs.cpu_speedup:
            return own.cpu_speedup / theirs.cpu_speedup
        return None

    def with_evidence(self, event: ProgramEvidence, number: int) -> "Attempt":
        """The attempt after one more instrument looked at its program."""
        # The event's number, not a time, orders attempts: clocks can go back, the log cannot.
        # A review is about all evidence: new evidence asks for a new one.
        update: dict[str, object] = {"last_event": number, "review": None}
        if isinstance(event, BuildFinished):
            return self.model_copy(update={**update, "build": event})
        field = "check" if isinstance(event, CheckFinished) else "bench"
        update |= {field: event, "status": event.status or self.status}
        # Events of older runs hold no verdict: `with_verdicts` makes it from the evidence.
        return self.model_copy(update={**update, "counts": bool(event.counts)})

    def with_review(self, event: ReviewFinished, number: int) -> "Attempt":
        """The attempt after its program was reviewed."""
        return self.model_copy(update={"last_event": number, "review": event})

    def reopened(self, step: str, number: int) -> "Attempt":
        """The attempt without what `step` and later ones had found; `program`: its files are lost, too."""
        # Later evidence depends on earlier evidence (a timing on its check), so all that follows the lost
        # step goes with it.
        begin = 0 if step == "program" else EVIDENCE.index(step)
        update: dict[str, object] = {**dict.fromkeys(EVIDENCE[begin:]), "review": None}
        if step != "bench":
            update |= {"status": "open", "counts": False}
        # Without its timing the verdict is that of the check alone.
        elif self.check is not None:
            update |= {"status": self.check.status, "counts": bool(self.check.counts)}
        return self.model_copy(update={**update, "last_event": number, "lost": step == "program"})


Attempts = tuple[Attempt, ...]
"""In the order in which the run met their programs."""


def find_attempt(attempts: Attempts, program_id: str) -> Attempt | None:
    """The attempt with that program."""
    return next((row for row in attempts if row.program_id == program_id), None)


def current_attempt(attempts: Attempts) -> Attempt | None:
    """The one that was worked on last; None where there is none whose files are whole."""
    # Derived from the events and never stored: an event and what follows from it cannot be torn apart by a
    # kill.
    return max((row for row in attempts if not row.lost), key=lambda row: row.last_event, default=None)


def best_attempt(attempts: Attempts) -> Attempt | None:
    """The fastest one that counts: by the lower end of its interval, the earlier one where two are equal.

    One that was not measured comes behind all that were. Among those the CPU time on one thread decides: on a
    busy machine it is all that is known.
    """
    counted = [row for row in attempts if row.counts and not row.lost]
    # max() keeps the first of equal ones.
    return max(counted, key=_rank, default=None)


def _rank(attempt: Attempt) -> tuple[bool, float, float]:
    safe = attempt.safe_speedup
    cpu = attempt.bench.cpu_speedup if attempt.bench else None
    return (True, safe, 0.0) if safe is not None else (False, 0.0, cpu or 0.0)


def with_program(attempts: Attempts, event: ProgramWritten, number: int) -> Attempts:
    """The attempts after a program was written, or a known one was taken up with all that is known of it."""
    attempt = find_attempt(attempts, event.program_id)
    if attempt is None:
        return (*attempts, Attempt(program=event, round=len(attempts), last_event=number))
    # Older versions recorded a known program without its author.
    program = event if event.author else event.model_copy(update={"author": attempt.author})
    taken_up = attempt.model_copy(update={"program": program, "last_event": number, "lost": False})
    return replaced(attempts, taken_up)


def replaced(attempts: Attempts, changed: Attempt) -> Attempts:
    """The attempts with `changed` in the place of the one with its program."""
    return tuple(changed if row.program_id == changed.program_id else row for row in attempts)
