"""Who did the work: forwards under a tracer, in a worker of its own that is never timed.

Its outputs are compared like any other draw's. What it reports is a claim of the process that the program
runs in: it is never the reason of an acceptance, and convicts nobody alone.
"""

from collections import Counter
from dataclasses import dataclass, field

from pydantic import ValidationError

from stitch_tools.check.candidate import Worker
from stitch_tools.check.reference import DrawUnavailable, ReferenceServer
from stitch_tools.check.traced import (
    Case,
    RefusedError,
    Report,
    Untraced,
    belongings,
    count_launches,
    sampler_for_host,
    watched_worker,
)
from stitch_tools.errors import EnvironmentMissingError, TaskError
from stitch_tools.models import CheckFlag, Finding, Severity
from stitch_tools.models.evidence import WorkEvidence, WorkItem, WorkOwner
from stitch_tools.processes.outcome import ChildDied

_BLOCKS = (("own-1", 3), ("own-2", 5))
"""Draws with the calls that count on a GPU: another number each, so that launches per call could differ."""
_FEWEST_OBSERVATIONS = 20
_NEARLY_NOTHING = 0.01
_MOST_ITEMS = 40
_MOST_NAMED = 10
_MOST_CHARS = 500
_TOPIC = "who did the work"


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


def trace_work(case: Case, reference: ReferenceServer, worker: Worker) -> Traced:
    """Evidence, findings and flags on who did the work.

    Args:
        case: the program.
        reference: compares the traced outputs. Its weights are exchanged.
        worker: the worker of the correctness check, which no tracer touched, with its last inputs.
    """
    traced = Traced()
    try:
        untraced = _untraced_launches(case, worker) if case.cuda else None
        report, right, launches = _trace(case, reference)
        if untraced is not None and untraced.past_dispatcher > _NEARLY_NOTHING:
            report = _with_hidden_pytorch(report)
        traced.evidence = _weigh(case, report, right, _counts_match(report, launches, untraced))
        _judge(case, traced, traced.evidence)
        if case.options.ablation:
            traced.evidence = traced.evidence.model_copy(
                update={"ablation": _ablate(case, reference, traced)}
            )
    except ChildDied as death:
        last = death.outcome.stderr_tail.strip()[-_MOST_CHARS:]
        message = f"right before, and under the tracer {death.outcome.describe()}"
        traced.find("untraceable", f"{message}: {last}" if last else message)
    except (RefusedError, ValidationError) as error:
        traced.find("untraceable", f"right before, and under the tracer: {str(error)[:_MOST_CHARS]}")
    except (DrawUnavailable, TaskError, EnvironmentMissingError) as error:
        traced.skipped.append(f"{_TOPIC}: {str(error)[:300]}")
    return traced


def _untraced_launches(case: Case, worker: Worker) -> Untraced:
    message = {"op": "activity_gates", "shut": False, **belongings(case, worker)}
    worker.child.request(message, timeout_s=case.options.init_timeout_s)
    return count_launches(worker, case, sampler_for_host(case.task, case.options))


def _with_hidden_pytorch(report: Report) -> Report:
    """The report with libraries counted as PyTorch's: what is called past its dispatcher has no operator."""
    rows = [
        row.model_copy(update={"owner": "pytorch"}) if row.owner == "library" else row for row in report.rows
    ]
    return report.model_copy(update={"rows": tuple(rows)})


def _trace(case: Case, reference: ReferenceServer) -> tuple[Report, bool, Untraced | None]:
    """The report, whether all outputs were right, and the launches that the gates counted (cuda)."""
    with watched_worker(case, reference) as watched:
        watched.begin()
        watched.load()
        watched.init()
        # Every block is made, whatever the first one gave.
        answers = [watched.traced_draw(kind, calls) for kind, calls in _BLOCKS]
        launches = None
        if case.cuda:
            watched.gate(shut=False)
            launches = watched.launches()
        return watched.report(), all(answers), launches


def _ablate(case: Case, reference: ReferenceServer, traced: Traced) -> str:
    """What the outputs do when the program's own launches do nothing."""
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
            stopped = watched.gate(shut=True)
        except (ChildDied, RefusedError):
            return "broke"
    if not stopped:
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


def _counts_match(report: Report, traced: Untraced | None, untraced: Untraced | None) -> bool | None:
    if not report.samples or traced is None or untraced is None:
        return None
    return all(block == report.blocks[0] for block in report.blocks) and traced.launches == untraced.launches


def _judge(case: Case, traced: Traced, evidence: WorkEvidence) -> None:
    if not evidence.outputs_right:
        traced.find("traced_outputs_differ", "right untraced, and wrong under the tracer")
    if evidence.counts_match is False:
        traced.find(
            "launch_counts_differ", "launches per forward change with the draw, the calls or the tracer"
        )
    if evidence.never_launched:
        names = ", ".join(evidence.never_launched[:_MOST_NAMED])
        traced.find("never_launched", f"kernels that are defined and never ran: {names}", "note")
    fewest = 1 if case.cuda else _FEWEST_OBSERVATIONS
    if evidence.observations * evidence.work < fewest:
        traced.skipped.append(f"{_TOPIC}: only {evidence.observations} observations, hardly any of work")
        return
    if evidence.pytorch_of_work > case.task.contract.pytorch_share:
        traced.flags.append("partial")
        names = [item.name for item in evidence.items if item.owner == "pytorch"][:_MOST_NAMED]
        share = f"{evidence.pytorch_of_work:.0%} of the work is PyTorch's"
        traced.find("pytorch_share", f"{share}: {', '.join(names)}", "note")
    if evidence.own < _NEARLY_NOTHING * evidence.work and evidence.library > 0:
        traced.flags.append("library_only")
