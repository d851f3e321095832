"""What can happen in a run: one payload model per kind of event.

Payloads are small; whatever is large lies in the store, and the payload names it by hash. A kind that this
version does not know is ignored on replay, so that an older reader can still show a newer run.
"""

from typing import Literal

from stitch_tools.models.acceptance import AcceptPolicy
from stitch_tools.models.base import Fact
from stitch_tools.models.verdict import CheckFlag, SandboxLevel

Decision = Literal["accept", "fix", "optimize", "next_step", "replan", "stop"]


class RunStarted(Fact):
    """A run was opened for a task; contract and target are frozen from here on."""

    task: str
    """Hash of the Task."""
    task_id: str
    coder: str
    """`stitcher`, or `outside`: an agent that calls the steps itself."""
    quick: bool
    """Whether only eager and torch.compile's default mode are timed."""
    min_speedup: float | None = None
    """Speed-up over eager that the caller asked for."""
    threads: int | None = None
    """CPU threads that the caller asked for; None: all."""
    require_sandbox: SandboxLevel | None = None
    """Weakest isolation that the caller accepts; None: any."""
    policy: AcceptPolicy = AcceptPolicy()
    """Which shortcomings of a correct program the caller accepts; older runs accept none."""
    interpreter: str
    """Path of the target interpreter."""
    environment: str
    """Hash of the Environment."""


class ReferenceObserved(Fact):
    """The reference ran once."""

    facts: str
    """Hash of the ReferenceFacts."""
    warnings: tuple[str, ...] = ()


class GraphCaptured(Fact):
    """The forward is known as operations."""

    graph: str
    """Hash of the Graph."""
    ceilings: str | None
    """Hash of the Ceilings; None where the device is not here, or was never measured."""
    source: str
    """export, fx or opaque."""


class PlanMade(Fact):
    """The order of work is decided."""

    plan: str
    """Hash of the Plan."""
    steps: int


class ProgramWritten(Fact):
    """A candidate exists: a new one, or one that the run knows and takes up again."""

    program: str
    """Hash of the Program."""
    program_id: str
    author: str = ""
    """stitcher, a model's name, or `outside`; "" in older runs, which did not record it."""
    notes: tuple[str, ...] = ()
    """What the coder wants a reader to know."""


class BuildFinished(Fact):
    """The candidate was compiled, or the compiler refused it."""

    program_id: str
    build: str | None
    """Hash of the Build; None for a Python program, which builds itself when it is loaded."""
    ok: bool


class CheckFinished(Fact):
    """The candidate was checked."""

    program_id: str
    check: str
    """Hash of the Check."""
    status: str
    """CheckStatus of the verdict."""
    flags: tuple[CheckFlag, ...] = ()
    counts: bool | None = None
    """Whether the verdict is that the program may be claimed; None in older runs, which made no verdict."""


class BenchFinished(Fact):
    """The candidate was timed beside its baselines."""

    program_id: str
    bench: str
    """Hash of the Bench."""
    outcome: str
    """BenchOutcome against eager."""
    status: str = ""
    """CheckStatus of the verdict, which the times may have changed; "" in older runs."""
    counts: bool | None = None
    """As in CheckFinished, with what the times show."""
    speedup: float | None = None
    """Median of eager time / program time; None where that was not measured, and in older runs."""
    safe_speedup: float | None = None
    """Lower end of the speed-up's 95% interval; None as above, and where the times are in doubt."""


class DecisionMade(Fact):
    """What follows from the evidence."""

    program_id: str
    """Program that the decision is about: for `next_step` the one that is taken up."""
    decision: Decision
    reason: str


class CertificateWritten(Fact):
    """The accepted result lies in an archive."""

    program_id: str
    file: str
    """Name inside the run folder."""
    sha256: str
    certificate_id: str


class RunStopped(Fact):
    """The run ended before its last step: an error, an interrupt, or the time limit. It can be resumed."""

    step: str
    """Step that is open."""
    code: str
    """Code of the StitchError; "internal" for a failure of ours that has none."""
    message: str
    hint: str = ""


class RunResumed(Fact):
    """A run is resumed after a stop or a kill, which leaves no event of its own."""

    step: str
    """Step that is tried next."""
    program_id: str = ""
    """Program that the step is about; "": the one that was worked on last."""
    lost: bool = True
    """Whether what that step and later ones had found counts no more, since the store lost it. Older runs
    name an open step in the same way, behind which nothing was found."""


class RunFinished(Fact):
    """Nothing more will happen unless the run is reopened."""

    status: str
    """CheckStatus of the best program."""
    outcome: str
    """BenchOutcome of the best program."""
    message: str
    """One sentence on status, outcome and reason."""
    reason: str = ""
    """What of that sentence status, outcome and flags do not say; "" in older runs."""
    flags: tuple[CheckFlag, ...] = ()
    counts: bool | None = None
    """Whether the best program may be claimed; None in older runs."""
    program_id: str = ""
    """The best program; "" in older runs: the one that was worked on last."""


RunEvent = (
    RunStarted
    | ReferenceObserved
    | GraphCaptured
    | PlanMade
    | ProgramWritten
    | BuildFinished
    | CheckFinished
    | BenchFinished
    | DecisionMade
    | CertificateWritten
    | RunStopped
    | RunResumed
    | RunFinished
)
ProgramEvidence = BuildFinished | CheckFinished | BenchFinished
"""Events that tell something of one program."""

KINDS: dict[str, type[RunEvent]] = {
    "run_started": RunStarted,
    "reference_observed": ReferenceObserved,
    "graph_captured": GraphCaptured,
    "plan_made": PlanMade,
    "program_written": ProgramWritten,
    "build_finished": BuildFinished,
    "check_finished": CheckFinished,
    "bench_finished": BenchFinished,
    "decision_made": DecisionMade,
    "certificate_written": CertificateWritten,
    "run_stopped": RunStopped,
    "run_resumed": RunResumed,
    "run_finished": RunFinished,
}
_NAMES = {model: kind for kind, model in KINDS.items()}


def kind_of(event: RunEvent) -> str:
    """The event's name in the log."""
    return _NAMES[type(event)]
