"""What can happen in a run: one payload model per kind of event.

Payloads are small; whatever is large lies in the store, and the payload names it by hash. A kind that this
version does not know is ignored on replay, so that an older reader can still show a newer run.
"""

from typing import Literal

from stitch_planner.runs.lessons import Lesson
from stitch_planner.runs.reviews import Review, ReviewMode
from stitch_tools.models.acceptance import AcceptPolicy
from stitch_tools.models.base import Fact
from stitch_tools.models.verdict import CheckFlag, SandboxLevel

Decision = Literal["accept", "fix", "optimize", "draft", "next_step", "replan", "stop"]
SearchName = Literal["greedy", "tree"]
PlannerName = Literal["none", "model"]


class RunStarted(Fact):
    """A run was opened for a task; contract and target are frozen from here on."""

    task: str
    """Hash of the Task."""
    task_id: str
    coder: str
    """`stitcher`; `outside`: an agent that calls the steps itself; `llm`, `acp:AGENT`, `manual` or
    `replay:FOLDER`: a language model, a coding agent, a person, or recorded answers after the stitcher."""
    model: str = ""
    """The model of the coder `llm`."""
    planner: PlannerName = "none"
    """`model`: the coder's model refines the plan before it writes; older runs have none."""
    rounds: int | None = None
    """How many programs a model may write; None where none writes."""
    search: SearchName = "greedy"
    """How the program is chosen that the next one is made from; older runs refine the best."""
    review: ReviewMode = "none"
    """Whether the model is asked for its opinion on each program, beside the rubric."""
    memory: bool = False
    """Whether the model is told of earlier runs, and this one's lessons are kept."""
    quick: bool
    """Whether only eager and torch.compile's default mode are timed."""
    min_speedup: float | None = None
    """Speedup over eager that the caller asked for."""
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


class MemoryRecalled(Fact):
    """Lessons of earlier runs were chosen for the model; kept here, since the user's memory changes."""

    lessons: tuple[Lesson, ...]


class PlanRefined(Fact):
    """A model was asked for a better plan. Where it gave none that fits the graph, the first one stands."""

    plan: str | None
    """Hash of the refined Plan; None where the first one stands."""
    author: str
    """The model's name."""
    steps: int = 0
    predicted_us: float | None = None
    """Time of all steps one after the other, as the model expects it."""
    problem: str = ""
    """Why there is no refined plan."""


class ModelAsked(Fact):
    """A question is about to be sent: recorded before, since what is sent may be billed."""

    call: int
    """Number of the question in the run; names the folder below `calls`. Sent again, it keeps its number."""
    request: str
    """Hash of the ChatRequest."""
    model: str
    most_tokens: int
    """Upper bound of what it takes, counted until its answer is recorded."""
    most_usd: float | None = None
    """Upper bound of its price; None where the price is not known."""


class ModelAnswered(Fact):
    """The answer to a question came."""

    call: int
    answer: str
    """Hash of the ChatAnswer."""
    tokens: int
    """Input and output together; the upper bound where the provider does not say it."""
    usd: float | None = None
    """None where the price is not known."""


class ProgramWritten(Fact):
    """A candidate exists: a new one, or one that the run knows and takes up again."""

    program: str
    """Hash of the Program."""
    program_id: str
    author: str = ""
    """stitcher, a model's name, or `outside`; "" in older runs, which did not record it."""
    parent_id: str | None = None
    """Program that it was made from; None for a draft, and in older runs."""
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
    """Lower end of the speedup's 95% interval; None as above, and where the times are in doubt."""
    cpu_speedup: float | None = None
    """The same by CPU time on one thread; None where that was not measured, since the times were certain."""


class ReviewFinished(Fact):
    """A model's program was reviewed. Small enough to be stored here; nothing depends on it."""

    program_id: str
    result: Review


class DecisionMade(Fact):
    """What follows from the evidence."""

    program_id: str
    """Program that the decision is about: for `next_step` the one that is taken up, for `draft` the one that
    was worked on last."""
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
    | MemoryRecalled
    | PlanRefined
    | ModelAsked
    | ModelAnswered
    | ProgramWritten
    | BuildFinished
    | CheckFinished
    | BenchFinished
    | ReviewFinished
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
    "memory_recalled": MemoryRecalled,
    "plan_refined": PlanRefined,
    "model_asked": ModelAsked,
    "model_answered": ModelAnswered,
    "program_written": ProgramWritten,
    "build_finished": BuildFinished,
    "check_finished": CheckFinished,
    "bench_finished": BenchFinished,
    "review_finished": ReviewFinished,
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
