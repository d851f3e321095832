"""Who did the work: forwards under PyTorch's profiler, in a worker of its own that is never timed.

Its outputs are compared like any other draw's. What it reports is a claim of the process that the program
runs in: it is never the reason of an acceptance, and convicts nobody alone.
"""

from collections import Counter
from dataclasses import replace

from stitch_tools.errors import EnvironmentMissingError, TaskError
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.correctness.check_record import Record
from stitch_tools.judge.trial import Trial
from stitch_tools.judge.work.launch_counts import LaunchComparison, compare_launches
from stitch_tools.judge.work.traced_worker import (
    HarnessFaultError,
    NoRoomToWatchError,
    RefusedError,
    WatchedWorker,
    watched_worker,
)
from stitch_tools.models.evidence import WorkEvidence, WorkItem, WorkOwner
from stitch_tools.protocol.messages_candidate import TracedRow, TraceReport
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.last_words import own_words
from stitch_tools.run.reference_server import DrawUnavailable, ReferenceMemoryError, ReferenceServer

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


def trace_work(
    record: Record,
    trial: Trial,
    options: CheckOptions,
    reference: ReferenceServer,
    watched: WatchedWorker | None = None,
) -> None:
    """Enter in the record who did the work: evidence, findings and flags, or why nobody can tell.

    Args:
        record: of the check.
        trial: the program.
        options: time limits and memory.
        reference: compares the traced outputs. Its weights are exchanged.
        watched: a worker that loads the program already (`begin_load`); None starts one.
    """
    try:
        if watched is not None:
            _watch(trial, watched, record)
        else:
            with watched_worker(trial, options, reference) as started:
                _watch(trial, started, record)
    except ChildDied as death:
        last = own_words(death.outcome.output_tail)[-_MOST_CHARS:]
        message = f"right before, and under the profiler {death.outcome.describe()}"
        # A crash is the program's: nothing of ours but a profiler runs beside it.
        record.memory_short |= death.outcome.kind == "out_of_memory"
        if death.outcome.kind in _OURS:
            record.skipped.append(f"{_TOPIC}: {message}")
        else:
            _cannot_tell(record, f"{message}: {last}" if last else message)
    except RefusedError as error:
        _cannot_tell(record, f"right before, and under the profiler: {str(error)[:_MOST_CHARS]}")
    except (HarnessFaultError, DrawUnavailable, TaskError, EnvironmentMissingError) as error:
        record.memory_short |= isinstance(error, (NoRoomToWatchError, ReferenceMemoryError))
        record.skipped.append(f"{_TOPIC}: {str(error)[:300]}")


def _cannot_tell(record: Record, message: str) -> None:
    """The program fails where it is watched: suspicious, and nobody knows whose work it is."""
    record.note("untraceable", message, "suspicious")
    record.skipped.append(f"{_TOPIC}: the program fails under the profiler")


def _watch(trial: Trial, watched: WatchedWorker, record: Record) -> None:
    watched.start(load=not record.as_constructed)
    # Every block is made, whatever the first one gave.
    answers = [watched.traced_draw(kind, calls) for kind, calls in _BLOCKS]
    report = watched.report()
    rows = _rows_of_kernels(report) if trial.on_gpu else _rows_of_operators(report)
    compared = compare_launches(report, blocks=len(_BLOCKS)) if trial.on_gpu else None
    record.work = evidence = _weigh(trial, report, rows, all(answers), compared.match if compared else None)
    if compared is not None:
        _judge_launches(record, compared)
    if report.past_dispatcher:
        names = ", ".join(report.past_dispatcher[:_MOST_NAMED])
        record.skipped.append(f"{_TOPIC}: {names} can be called past PyTorch's dispatcher, {_COUNTED}")
    elif report.libraries and report.own_code and not trial.on_gpu:
        names = ", ".join(report.libraries[:_MOST_NAMED])
        record.skipped.append(f"{_TOPIC}: what {names} did counts as the program's own: calls are not seen")
    _judge(trial, record, evidence)


def _rows_of_kernels(report: TraceReport) -> tuple[TracedRow, ...]:
    """The report's rows. Kernels that PyTorch launches past its dispatcher look like a library's."""
    if not report.past_dispatcher:
        return report.rows
    # Which of a library's kernels came that way leaves no trace: in doubt against the one who hides it.
    return tuple(replace(row, owner="pytorch") if row.owner == "library" else row for row in report.rows)


def _rows_of_operators(report: TraceReport) -> tuple[TracedRow, ...]:
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
    return (*report.rows, TracedRow(owner=owner, name=name, calls=None, weight=outside_ns))


def _weigh(
    trial: Trial, report: TraceReport, rows: tuple[TracedRow, ...], right: bool, counts_match: bool | None
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


def _judge_launches(record: Record, compared: LaunchComparison) -> None:
    if compared.differing:
        named = "; ".join(compared.differing[:_MOST_NAMED])
        message = f"the program's launches per forward change: {named}"
        record.note("launch_counts_differ", message, "suspicious")
    if compared.missing:
        record.skipped.append(f"launch counts: {compared.missing}")


def _judge(trial: Trial, record: Record, evidence: WorkEvidence) -> None:
    if not evidence.outputs_right:
        record.note("traced_outputs_differ", "right before, and wrong under the profiler", "suspicious")
    if evidence.never_launched:
        names = ", ".join(evidence.never_launched[:_MOST_NAMED])
        record.note("never_launched", f"kernels that are defined and never ran: {names}")
    if not evidence.observations or evidence.work <= 0.0:
        record.skipped.append(f"{_TOPIC}: the profiler has no records of work")
        return
    if evidence.pytorch_of_work > trial.task.contract.pytorch_share:
        record.flags.append("partial")
        names = [item.name for item in evidence.items if item.owner == "pytorch"][:_MOST_NAMED]
        share = f"{evidence.pytorch_of_work:.0%} of the work is PyTorch's"
        record.note("pytorch_share", f"{share}: {', '.join(names)}")
    if is_library_only(evidence):
        record.flags.append("library_only")


def is_library_only(evidence: WorkEvidence) -> bool:
    """Whether a library did some of the work, and the program's own code nearly nothing."""
    return evidence.own < _NEARLY_NOTHING * evidence.work and evidence.library > 0
