"""The state of a run, replayed from its events; enough to go on after a kill at any moment."""

from collections.abc import Iterable

from pydantic import ValidationError

from stitch_planner.runs.run_events import (
    KINDS,
    BenchFinished,
    BuildFinished,
    CertificateWritten,
    CheckFinished,
    DecisionMade,
    GraphCaptured,
    PlanMade,
    ProgramWritten,
    ReferenceObserved,
    RunEvent,
    RunFinished,
    RunResumed,
    RunStarted,
    RunStopped,
)
from stitch_tools.errors import StoreError
from stitch_tools.models import Fact
from stitch_tools.storage.events import Event


class State(Fact):
    """What is known after some events. A field is None until its event was seen."""

    started: RunStarted | None = None
    reference: ReferenceObserved | None = None
    graph: GraphCaptured | None = None
    plan: PlanMade | None = None
    program: ProgramWritten | None = None
    build: BuildFinished | None = None
    check: CheckFinished | None = None
    bench: BenchFinished | None = None
    decision: DecisionMade | None = None
    certificate: CertificateWritten | None = None
    stopped: RunStopped | None = None
    """Why the run ended early; None again as soon as it goes on."""
    resumed: RunResumed | None = None
    finished: RunFinished | None = None
    events: int = 0
    """How many events were replayed, unknown kinds included."""

    def after(self, event: RunEvent) -> "State":
        """The state that follows when `event` happens.

        A new program clears what was known of the old one. A run that is resumed at a step loses what that
        step and later ones had found: the store no longer had it whole.
        """
        update: dict[str, RunEvent | int | None] = {"stopped": None, "events": self.events + 1}
        update[_FIELDS[type(event)]] = event
        if isinstance(event, ProgramWritten):
            update |= dict.fromkeys(("build", "check", "bench", "decision", "certificate", "finished"))
        if isinstance(event, RunResumed) and event.step in FOUND:
            update |= dict.fromkeys(FOUND[FOUND.index(event.step) :])
        return self.model_copy(update=update)

    @property
    def resumed_at(self) -> str:
        """Step that a resumed run names: the first open one, of those behind its program where there is one.

        An agent may bring a program without a plan. The plan can be made up for; to go on *at* the plan would
        throw away the program and all that was found of it.
        """
        begin = FOUND.index("program") + 1 if self.program is not None else 0
        return next((name for name in FOUND[begin:] if getattr(self, name) is None), FOUND[-1])

    @property
    def status(self) -> str:
        """CheckStatus of the best program; before the end "failed" after an error, else "open"."""
        if self.finished is not None:
            return self.finished.status
        return "open" if self.stopped is None or self.stopped.code in _NO_FAULT else "failed"

    @property
    def message(self) -> str:
        """One sentence on how the run ended, "" while it goes on."""
        if self.finished is not None:
            return self.finished.message
        return self.stopped.message if self.stopped else ""


FOUND = (
    "reference",
    "graph",
    "plan",
    "program",
    "build",
    "check",
    "bench",
    "decision",
    "certificate",
    "finished",
)
"""The fields that the steps fill, in their order."""

_NO_FAULT = ("interrupted", "budget")
"""Codes of a stop that nothing has to be mended for."""

_FIELDS: dict[type[RunEvent], str] = {
    RunStarted: "started",
    ReferenceObserved: "reference",
    GraphCaptured: "graph",
    PlanMade: "plan",
    ProgramWritten: "program",
    BuildFinished: "build",
    CheckFinished: "check",
    BenchFinished: "bench",
    DecisionMade: "decision",
    CertificateWritten: "certificate",
    RunStopped: "stopped",
    RunResumed: "resumed",
    RunFinished: "finished",
}


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
