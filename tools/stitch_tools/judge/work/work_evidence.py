"""Who did the work: forwards under PyTorch's profiler, in a worker of its own that is never timed.

Its outputs are compared like any other draw's. What it reports is a claim of the process that the program
runs in: it is never the reason of an acceptance, and convicts nobody alone.
"""

from collections import Counter
from dataclasses import dataclass, field

from stitch_tools.errors import EnvironmentMissingError, TaskError
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.judge.work.launch_counts import LaunchComparison, compare_launches
from stitch_tools.judge.work.traced_worker import (
    HarnessFaultError,
    RefusedError,
    Report,
    ReportRow,
    WatchedWorker,
    watched_worker,
)
from stitch_tools.models import CheckFlag, Finding, Severity
from stitch_tools.models.evidence import WorkEvidence, WorkItem, WorkOwner
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.last_words import own_words
from stitch_tools.run.reference_server import DrawUnavailable, ReferenceServer

_BLOCKS = (("own-1", 3), ("own-2", 5))
"""Draws with the calls that count on a GPU: another number each, so that launches per call could differ."""
_NEARLY_NOTHING = 0.01
"""Share of the work below which the program's own code does nothing of it."""
_MOST_ITEMS = 40
_MOST_NAMED = 10
_MOST_CHARS = 500
_TOPIC = "who did the work"
_COUNTED = "which leaves no record: all that has none counts as PyTorch's"
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
        self.skipped.append(f"{_TOPIC}: the program fails under the profiler")


def trace_work(
    trial: Trial, options: CheckOptions, reference: ReferenceServer, watched: WatchedWorker | None = None
) -> Traced:
    """Evidence, findings and flags on who did the work.

    Args:
        trial: the program.
        options: time limits and memory.
        reference: compares the traced outputs. Its weights are exchanged.
        watched: a worker that loads the program already (`begin_load`); None starts one.
    """
    traced = Traced()
    try:
        if watched is not None:
            _watch(trial, watched, traced)
        else:
            with watched_worker(trial, options, reference) as started:
                started.begin_load()
                _watch(trial, started, traced)
    except ChildDied as death:
        last = own_words(death.outcome.stderr_tail)[-_MOST_CHARS:]
        message = f"right before, and under the profiler {death.outcome.describe()}"
        # A crash is the program's: nothing of ours but a profiler runs beside it.
        if death.outcome.kind in _OURS:
            traced.skipped.append(f"{_TOPIC}: {message}")
        else:
            traced.cannot_tell(f"{message}: {last}" if last else message)
    except RefusedError as error:
        traced.cannot_tell(f"right before, and under the profiler: {str(error)[:_MOST_CHARS]}")
    except (HarnessFaultError, DrawUnavailable, TaskError, EnvironmentMissingError) as error:
        traced.skipped.append(f"{_TOPIC}: {str(error)[:300]}")
    return traced


def _watch(trial: Trial, watched: WatchedWorker, traced: Traced) -> None:
    watched.load()
    watched.init()
    # Every block is made, whatever the first one gave.
    answers = [watched.traced_draw(kind, calls) for kind, calls in _BLOCKS]
    report = watched.report()
    rows = _rows_of_kernels(report) if trial.on_gpu else _rows_of_operators(report)
    compared = compare_launches(report, blocks=len(_BLOCKS)) if trial.on_gpu else None
    traced.evidence = _weigh(trial, report, rows, all(answers), compared.match if compared else None)
    if compared is not None:
        _judge_launches(traced, compared)
    if report.past_dispatcher:
        names = ", ".join(report.past_dispatcher[:_MOST_NAMED])
        traced.skipped.append(f"{_TOPIC}: {names} can be called past PyTorch's dispatcher, {_COUNTED}")
    elif report.libraries and report.own_code and not trial.on_gpu:
        names = ", ".join(report.libraries[:_MOST_NAMED])
        traced.skipped.append(f"{_TOPIC}: what {names} did counts as the program's own: calls are not seen")
    _judge(trial, traced, traced.evidence)


def _rows_of_kernels(report: Report) -> tuple[ReportRow, ...]:
    """The report's rows. Kernels that PyTorch launches past its dispatcher look like a library's."""
    if not report.past_dispatcher:
        return report.rows
    # Which of a library's kernels came that way leaves no trace: in doubt against the one who hides it.
    return tuple(
        row.model_copy(update={"owner": "pytorch"}) if row.owner == "library" else row for row in report.rows
    )


def _rows_of_operators(report: Report) -> tuple[ReportRow, ...]:
    """PyTorch's operators, and the rest of the time with its owner."""
    inside_ns = sum(max(0, row.weight) for row in report.rows)
    outside_ns = max(0, report.outside_ns)
    owner: WorkOwner = "own"
    name = "code outside of PyTorch's operators"
    if report.past_dispatcher:
        owner, name = "pytorch", "code that may call operators past the dispatcher"
    elif not report.own_code:
        # Nothing that the program brought is compiled: beside operators there are the interpreter and what
        # it calls. Where no operator computes, that did the work.
        none = inside_ns < _NEARLY_NOTHING * (inside_ns + outside_ns)
        owner, name = ("library", "libraries that Python calls") if none else ("other", "interpreter")
    return (*report.rows, ReportRow(owner=owner, name=name, calls=None, weight=outside_ns))


def _weigh(
    trial: Trial, report: Report, rows: tuple[ReportRow, ...], right: bool, counts_match: bool | None
) -> WorkEvidence:
    # Weights are claims of the worker: a negative one must not turn a share round.
    total = sum(max(0, row.weight) for row in rows)
    weights: Counter[WorkOwner] = Counter()
    for row in rows:
        weights[row.owner] += max(0, row.weight)
    shares = {owner: weight / total for owner, weight in weights.items()} if total else {}
    items = [
        WorkItem(
            name=row.name[:300], owner=row.owner, calls=row.calls, share=max(0, row.weight) / max(total, 1)
        )
        for row in rows
    ]
    items.sort(key=lambda item: -item.share)
    return WorkEvidence(
        method="kernels" if trial.on_gpu else "operators",
        own=shares.get("own", 0.0),
        library=shares.get("library", 0.0),
        pytorch=shares.get("pytorch", 0.0),
        copies=shares.get("copy", 0.0),
        other=shares.get("other", 0.0),
        observations=report.observations,
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


def _judge(trial: Trial, traced: Traced, evidence: WorkEvidence) -> None:
    if not evidence.outputs_right:
        traced.find("traced_outputs_differ", "right before, and wrong under the profiler")
    if evidence.never_launched:
        names = ", ".join(evidence.never_launched[:_MOST_NAMED])
        traced.find("never_launched", f"kernels that are defined and never ran: {names}", "note")
    if not evidence.observations or evidence.work <= 0.0:
        traced.skipped.append(f"{_TOPIC}: the profiler has no records of work")
        return
    if evidence.pytorch_of_work > trial.task.contract.pytorch_share:
        traced.flags.append("partial")
        names = [item.name for item in evidence.items if item.owner == "pytorch"][:_MOST_NAMED]
        share = f"{evidence.pytorch_of_work:.0%} of the work is PyTorch's"
        traced.find("pytorch_share", f"{share}: {', '.join(names)}", "note")
    if is_library_only(evidence):
        traced.flags.append("library_only")


def is_library_only(evidence: WorkEvidence) -> bool:
    """Whether a library did some of the work, and the program's own code nearly nothing."""
    return evidence.own < _NEARLY_NOTHING * evidence.work and evidence.library > 0
