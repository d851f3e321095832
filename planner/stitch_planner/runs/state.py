"""The state of a run, replayed from its events; enough to resume after a kill at any moment."""

from collections.abc import Iterable

from pydantic import ValidationError

from stitch_planner.runs.attempts import (
    EVIDENCE,
    Attempt,
    Attempts,
    best_attempt,
    current_attempt,
    find_attempt,
    replaced,
    with_program,
)
from stitch_planner.runs.model_calls import ModelCall, with_call
from stitch_planner.runs.run_events import (
    KINDS,
    BenchFinished,
    BuildFinished,
    CertificateWritten,
    CheckFinished,
    DecisionMade,
    GraphCaptured,
    MemoryRecalled,
    ModelAnswered,
    ModelAsked,
    PlanMade,
    PlanRefined,
    ProgramEvidence,
    ProgramWritten,
    ReferenceObserved,
    ReviewFinished,
    RunEvent,
    RunFinished,
    RunResumed,
    RunStarted,
    RunStopped,
)
from stitch_tools.errors import StoreError
from stitch_tools.models.base import Fact
from stitch_tools.storage.events import Event

PREPARATION: tuple[str, ...] = ("reference", "graph", "plan", "refinement")
"""What a run finds out once, whatever programs follow; `refinement` only where a model plans."""
CONCLUSION: tuple[str, ...] = ("decision", "certificate", "finished")
"""What follows from the evidence on all programs."""
FOUND = (*PREPARATION, "program", *EVIDENCE, *CONCLUSION)
"""The steps of a run in their order."""
_NO_FAULT = ("interrupted", "budget")
"""Codes of a stop after which the run can be resumed without a fix."""


class State(Fact):
    """What is known after some events. A field is None until its event was seen."""

    started: RunStarted | None = None
    reference: ReferenceObserved | None = None
    graph: GraphCaptured | None = None
    plan: PlanMade | None = None
    memory: MemoryRecalled | None = None
    refinement: PlanRefined | None = None
    """What a model made of the plan; None before it was asked, and where none is."""
    attempts: Attempts = ()
    """One per program, in the order in which the run met them."""
    calls: tuple[ModelCall, ...] = ()
    """One per question to a model, in their order."""
    decision: DecisionMade | None = None
    """What follows from the evidence; None again as soon as another program is worked on."""
    certificate: CertificateWritten | None = None
    stopped: RunStopped | None = None
    """Why the run ended early; None again as soon as it is resumed."""
    resumed: RunResumed | None = None
    finished: RunFinished | None = None
    events: int = 0
    """How many events were replayed, unknown kinds included."""

    @property
    def current(self) -> Attempt | None:
        """The attempt that was worked on last."""
        return current_attempt(self.attempts)

    @property
    def best(self) -> Attempt | None:
        """The fastest attempt whose verdict counts."""
        return best_attempt(self.attempts)

    @property
    def result(self) -> Attempt | None:
        """The attempt that the run ended with; before its end the best, else the current one."""
        named = find_attempt(self.attempts, self.finished.program_id) if self.finished else None
        if self.finished and not self.finished.program_id:
            return self.current  # An older run, which ended with the program that it worked on.
        return named or self.best or self.current

    @property
    def open_preparation(self) -> str | None:
        """The first step of the preparation that is not done; None where all that the run needs are."""
        planner = self.started.planner if self.started else "none"
        needed = PREPARATION if planner == "model" else PREPARATION[:-1]
        return next((name for name in needed if getattr(self, name) is None), None)

    def attempt(self, program_id: str) -> Attempt | None:
        """The attempt with that program, None where the run does not know it."""
        return find_attempt(self.attempts, program_id)

    def after(self, event: RunEvent) -> "State":
        """The state that follows when `event` happens.

        A program that is new or taken up again, or the wish for a faster one, reopens the run; what is known
        of other programs stays. A run that is resumed at a lost step loses what that step and later ones had
        found.
        """
        # Every event removes `stopped`: whatever is recorded after a stop shows that the run continued.
        number = self.events + 1
        update: dict[str, object] = {"stopped": None, "events": number}
        # A decision is about all programs that were known when it was made, so a new program withdraws it.
        if isinstance(event, ProgramWritten):
            update |= {"attempts": with_program(self.attempts, event, number), **_cleared(CONCLUSION)}
        elif isinstance(event, BuildFinished | CheckFinished | BenchFinished):
            update["attempts"] = self._with_evidence(event, number)
        elif isinstance(event, ReviewFinished):
            update["attempts"] = self._with_review(event, number)
        elif isinstance(event, ModelAsked | ModelAnswered):
            update["calls"] = with_call(self.calls, event)
        else:
            update[_FIELDS[type(event)]] = event
            # `solve` may ask for one more program of a run that was finished.
            if isinstance(event, DecisionMade) and event.decision in ("optimize", "draft"):
                update |= _cleared(("certificate", "finished"))
            if isinstance(event, RunResumed) and event.lost and event.step in FOUND:
                update |= self._without(event, number)
        return self.model_copy(update=update)

    def _with_evidence(self, event: ProgramEvidence, number: int) -> Attempts:
        # An event that names no program of the run belongs to the one that was written last.
        attempt = self.attempt(event.program_id) or self.current
        return replaced(self.attempts, attempt.with_evidence(event, number)) if attempt else self.attempts

    def _with_review(self, event: ReviewFinished, number: int) -> Attempts:
        attempt = self.attempt(event.program_id) or self.current
        return replaced(self.attempts, attempt.with_review(event, number)) if attempt else self.attempts

    def _without(self, event: RunResumed, number: int) -> dict[str, object]:
        """The fields that change where what the event's step had found is lost.

        Evidence on programs outlives the reference's: it was judged with what was lost only afterwards.
        """
        # The evidence is whole there: only what was concluded from it has to be made again.
        if event.step in CONCLUSION:
            return _cleared(CONCLUSION[CONCLUSION.index(event.step) :])
        update = _cleared(CONCLUSION)
        # Graph and plan follow from the reference's facts, so they go with them; the attempts stay.
        if event.step in PREPARATION:
            return update | _cleared(PREPARATION[PREPARATION.index(event.step) :])
        attempt = self.attempt(event.program_id) or self.current
        if attempt is not None:
            update["attempts"] = replaced(self.attempts, attempt.reopened(event.step, number))
        return update

    @property
    def resumed_at(self) -> str:
        """Step that a resumed run names: the first open one, of those behind its program where there is one.

        An agent may bring a program without a plan, which is made up for.
        """
        if self.current is not None:
            return self.current.open_step or self._first_open(CONCLUSION)
        return self.open_preparation or "program"

    def _first_open(self, names: tuple[str, ...]) -> str:
        return next((name for name in names if getattr(self, name) is None), names[-1])

    @property
    def status(self) -> str:
        """CheckStatus of the best program; before the end "failed" after an error, else "open"."""
        if self.finished is not None:
            return self.finished.status
        return "open" if self.stopped is None or self.stopped.code in _NO_FAULT else "failed"

    @property
    def message(self) -> str:
        """One sentence on how the run ended, "" while it is running."""
        if self.finished is not None:
            return self.finished.message
        return self.stopped.message if self.stopped else ""


_FIELDS: dict[type[RunEvent], str] = {
    RunStarted: "started",
    ReferenceObserved: "reference",
    GraphCaptured: "graph",
    PlanMade: "plan",
    MemoryRecalled: "memory",
    PlanRefined: "refinement",
    DecisionMade: "decision",
    CertificateWritten: "certificate",
    RunStopped: "stopped",
    RunResumed: "resumed",
    RunFinished: "finished",
}
"""Where the state keeps an event that is about the run as a whole."""


def _cleared(names: tuple[str, ...]) -> dict[str, object]:
    return {**dict.fromkeys(names)}


def replay(events: Iterable[Event]) -> State:
    """The state after all events.

    Raises:
        StoreError: the payload of a known kind does not fit its schema.
    """
    state = State()
    for event in events:
        model = KINDS.get(event.kind)
        if model is None:
            state = state.model_copy(update={"events": state.events + 1})
            continue
        try:
            state = state.after(model.model_validate(event.payload))
        except ValidationError as error:
            raise StoreError(
                f"event {event.seq} ({event.kind}) does not fit its schema",
                hint="was the log edited by hand? start a new run",
            ) from error
    return state
