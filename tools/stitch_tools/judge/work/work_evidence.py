"""Who did the work: forwards under a tracer, in a worker of its own that is never timed.

Its outputs are compared like any other draw's. What it reports is a claim of the process that the program
runs in: it is never the reason of an acceptance, and convicts nobody alone.
"""

from collections import Counter
from dataclasses import dataclass, field

from stitch_tools.errors import EnvironmentMissingError, TaskError
from stitch_tools.judge.work.launch_counts import LaunchComparison, compare_launches
from stitch_tools.judge.work.traced_worker import (
    Case,
    HarnessFaultError,
    LaunchCounts,
    RefusedError,
    Report,
    WatchedWorker,
    count_launches,
    put_gates,
    sampler_for_host,
    watched_worker,
)
from stitch_tools.models import CheckFlag, Finding, Severity
from stitch_tools.models.evidence import WorkEvidence, WorkItem, WorkOwner
from stitch_tools.run.candidate_worker import Worker
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.last_words import own_words
from stitch_tools.run.reference_server import DrawUnavailable, ReferenceServer
from stitch_tools.worker.candidate.activity import UNWATCHED
from stitch_tools.worker.candidate.activity.odds import at_least, at_most

_BLOCKS = (("own-1", 3), ("own-2", 5))
"""Draws with the calls that count on a GPU: another number each, so that launches per call could differ."""
_FEWEST_OBSERVATIONS = 20
_NEARLY_NOTHING = 0.01
_SOMETHING = 0.05
_DOUBT = 0.02
"""What samples leave open: a part is nearly nothing where it may be 0.01 of the work, and cannot be 0.05."""
_MOST_OBSERVATIONS = 10_000  # a claim: more than the sampler has room for
_MOST_ITEMS = 40
_MOST_NAMED = 10
_MOST_CHARS = 500
_TOPIC = "who did the work"
_OURS = ("timed_out", "out_of_memory", "killed")
"""Ends of a watched worker that watching may well have caused: it takes time and memory."""


@dataclass
class Traced:
    """What the judge takes over."""

    evidence: WorkEvidence | None = None
    findings: list[Finding] = field(default_factory=list[Finding])
    flags: list[CheckFlag] = field(default_factory=list[CheckFlag])
    skipped: list[str] = field(default_factory=list[str])

    def find(self, rule: str, message: str, severity: Severity = "suspicious") -> None:
        """Add a finding."""
        self.findings.append(Finding(rule=rule, severity=severity, message=message))

    def cannot_tell(self, message: str) -> None:
        """The program fails where it is watched: suspicious, and nobody knows whose work it is."""
        self.find("untraceable", message)
        self.skipped.append(f"{_TOPIC}: the program fails under the tracer")


def trace_work(
    case: Case, reference: ReferenceServer, worker: Worker, watched: WatchedWorker | None = None
) -> Traced:
    """Evidence, findings and flags on who did the work.

    Args:
        case: the program.
        reference: compares the traced outputs. Its weights are exchanged.
        worker: the worker of the correctness check, which no tracer touched, with its last inputs.
        watched: one that loads the program already (`begin_load`); None starts one.
    """
    traced = Traced()
    try:
        _watch(case, reference, worker, watched, traced)
    except ChildDied as death:
        last = own_words(death.outcome.stderr_tail)[-_MOST_CHARS:]
        message = f"right before, and under the tracer {death.outcome.describe()}"
        if death.outcome.kind in _OURS:
            traced.skipped.append(f"{_TOPIC}: {message}")
        else:
            traced.cannot_tell(f"{message}: {last}" if last else message)
    except RefusedError as error:
        traced.cannot_tell(f"right before, and under the tracer: {str(error)[:_MOST_CHARS]}")
    except (HarnessFaultError, DrawUnavailable, TaskError, EnvironmentMissingError) as error:
        traced.skipped.append(f"{_TOPIC}: {str(error)[:300]}")
    return traced


def _watch(
    case: Case, reference: ReferenceServer, worker: Worker, watched: WatchedWorker | None, traced: Traced
) -> None:
    untraced = _untraced_launches(case, worker, traced) if case.cuda else None
    if watched is None:
        with watched_worker(case, reference) as started:
            started.begin_load()
            report, right, launches = _trace(case, started)
    else:
        report, right, launches = _trace(case, watched)
    if untraced is not None and untraced.past_dispatcher > _NEARLY_NOTHING:
        report = _with_hidden_pytorch(report)
    compared = compare_launches(report, launches, untraced, blocks=len(_BLOCKS)) if case.cuda else None
    traced.evidence = _weigh(case, report, right, compared.match if compared else None)
    if compared is not None:
        _judge_launches(traced, compared)
    _judge(case, traced, traced.evidence)
    if case.options.ablation:
        ablation = _ablate(case, reference, traced)
        traced.evidence = traced.evidence.model_copy(update={"ablation": ablation})


def _untraced_launches(case: Case, worker: Worker, traced: Traced) -> LaunchCounts | None:
    try:
        put_gates(worker, case)
        return count_launches(worker, case, sampler_for_host(case.task, case.options))
    except (HarnessFaultError, ChildDied) as error:
        # Without gates and sampler it lived; with them it is ours to explain.
        traced.skipped.append(f"launches without the tracer: {str(error)[:300]}")
        return None


def _gated_launches(watched: WatchedWorker) -> LaunchCounts:
    try:
        watched.gate(shut=False)
        return watched.launches()
    except ChildDied as death:
        raise HarnessFaultError(f"with its launches counted {death.outcome.describe()}") from death


def _with_hidden_pytorch(report: Report) -> Report:
    """The report with libraries counted as PyTorch's: what is called past its dispatcher has no operator."""
    rows = [
        row.model_copy(update={"owner": "pytorch"}) if row.owner == "library" else row for row in report.rows
    ]
    return report.model_copy(update={"rows": tuple(rows)})


def _trace(case: Case, watched: WatchedWorker) -> tuple[Report, bool, LaunchCounts | None]:
    """The report, whether all outputs were right, and the launches that the gates counted (cuda)."""
    watched.load()
    watched.init()
    # Every block is made, whatever the first one gave.
    answers = [watched.traced_draw(kind, calls) for kind, calls in _BLOCKS]
    launches = _gated_launches(watched) if case.cuda else None
    return watched.report(), all(answers), launches


def _ablate(case: Case, reference: ReferenceServer, traced: Traced) -> str | None:
    """What the outputs do when the program's own launches do nothing; None where that failed."""
    try:
        return _ablated(case, reference, traced)
    except HarnessFaultError as error:
        traced.skipped.append(f"ablation: {error}")
        return None


def _ablated(case: Case, reference: ReferenceServer, traced: Traced) -> str:
    if not case.cuda:
        traced.skipped.append("ablation: on a cpu the program's own code is all that could be taken out")
        return "not_applicable"
    with watched_worker(case, reference) as watched:
        watched.load()
        # Before the constructor, where a graph may be captured, and after it, where more may be loaded.
        watched.gate(shut=True)
        try:
            watched.init()
            watched.gate(shut=True)
            survived = watched.plain_draw(_BLOCKS[0][0])
            gated = watched.gate(shut=True)
        except (ChildDied, RefusedError):
            return "broke"
    if gated.trouble:
        raise HarnessFaultError(gated.trouble)
    if not gated.passed:
        traced.skipped.append("ablation: the program's own binaries launch nothing themselves")
        return "not_applicable"
    if not survived:
        return "broke"
    traced.find("ablation_survived", "the outputs stay right when the program's own launches do nothing")
    return "survived"


def _weigh(case: Case, report: Report, right: bool, counts_match: bool | None) -> WorkEvidence:
    total = sum(max(0, row.weight) for row in report.rows)
    weights: Counter[WorkOwner] = Counter()
    for row in report.rows:
        weights[row.owner] += max(0, row.weight)
    shares = {owner: weight / total for owner, weight in weights.items()} if total else {}
    items = [
        WorkItem(
            name=row.name[:300], owner=row.owner, calls=row.calls, share=max(0, row.weight) / max(total, 1)
        )
        for row in report.rows
    ]
    items.sort(key=lambda item: -item.share)
    return WorkEvidence(
        method="kernels" if case.cuda else "samples",
        own=shares.get("own", 0.0),
        library=shares.get("library", 0.0),
        pytorch=shares.get("pytorch", 0.0),
        copies=shares.get("copy", 0.0),
        other=shares.get("other", 0.0),
        observations=report.samples,
        items=tuple(items[:_MOST_ITEMS]),
        never_launched=report.never,
        outputs_right=right,
        launches=sum(report.blocks[-1].values()) if report.blocks else None,
        counts_match=counts_match,
    )


def _judge_launches(traced: Traced, compared: LaunchComparison) -> None:
    if compared.differing:
        named = "; ".join(compared.differing[:_MOST_NAMED])
        traced.find("launch_counts_differ", f"the program's launches per forward change: {named}")
    if compared.varying:
        named = "; ".join(compared.varying[:_MOST_NAMED])
        traced.find("library_launches_vary", f"a library chose other kernels: {named}", "note")
    traced.skipped += [f"launch counts: {reason[:300]}" for reason in compared.missing]


def _judge(case: Case, traced: Traced, evidence: WorkEvidence) -> None:
    if not evidence.outputs_right:
        traced.find("traced_outputs_differ", "right untraced, and wrong under the tracer")
    if evidence.never_launched:
        names = ", ".join(evidence.never_launched[:_MOST_NAMED])
        traced.find("never_launched", f"kernels that are defined and never ran: {names}", "note")
    unwatched = sum(item.share for item in evidence.items if item.name == UNWATCHED)
    allowed = case.task.contract.pytorch_share * (unwatched + evidence.work)
    if unwatched > evidence.work and evidence.pytorch <= allowed:
        # What these threads do could be anybody's work, so the little that was seen tells no shares.
        traced.skipped.append(f"{_TOPIC}: {unwatched:.0%} of the time went to threads made anew in each call")
        return
    fewest = 1 if case.cuda else _FEWEST_OBSERVATIONS
    if evidence.observations * evidence.work < fewest:
        traced.skipped.append(f"{_TOPIC}: only {evidence.observations} observations, hardly any of work")
        return
    if evidence.pytorch_of_work > case.task.contract.pytorch_share:
        traced.flags.append("partial")
        names = [item.name for item in evidence.items if item.owner == "pytorch"][:_MOST_NAMED]
        share = f"{evidence.pytorch_of_work:.0%} of the work is PyTorch's"
        traced.find("pytorch_share", f"{share}: {', '.join(names)}", "note")
    if is_library_only(evidence):
        traced.flags.append("library_only")


def is_library_only(evidence: WorkEvidence) -> bool:
    """Whether a library did some of the work, and the program's own code nearly nothing."""
    if evidence.method == "kernels":
        return evidence.own < _NEARLY_NOTHING * evidence.work and evidence.library > 0
    observations = min(evidence.observations, _MOST_OBSERVATIONS)
    number, own, library = (
        round(observations * share) for share in (evidence.work, evidence.own, evidence.library)
    )
    # One sample of a library, or two of the program, come by chance.
    return (
        at_most(own, number, _SOMETHING) <= _DOUBT < at_least(own, number, _NEARLY_NOTHING)
        and at_least(library, number, _NEARLY_NOTHING) <= _DOUBT
    )
