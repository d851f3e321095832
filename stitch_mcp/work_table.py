"""Who did a program's work, as a table."""

from stitch_mcp.report import Section
from stitch_tools.models import WorkEvidence, WorkItem

_MOST_ROWS = 12
_OWNERS = {
    "own": "the program",
    "library": "a library",
    "pytorch": "PyTorch",
    "copy": "copies",
    "other": "no work",
}
_ABLATIONS = {"broke": "break", "survived": "stay RIGHT", "not_applicable": "not applicable"}


def work_sections(work: WorkEvidence | None) -> list[Section]:
    """The largest parts of the traced time with their owners, and the shares; empty without a trace."""
    if work is None:
        return []
    rows = tuple(_row(item) for item in work.items[:_MOST_ROWS])
    shares = (
        f"own {work.own:.0%}, libraries {work.library:.0%}, PyTorch {work.pytorch:.0%}, "
        f"copies {work.copies:.0%}, no work {work.other:.0%}"
    )
    what = "samples of running threads" if work.method == "samples" else "device activities"
    notes = [f"{shares}, by {work.observations} {what}"]
    if len(work.items) > _MOST_ROWS:
        notes.append(f"{len(work.items) - _MOST_ROWS} smaller parts are left out")
    if work.counts_match is not None:
        same = "the same" if work.counts_match else "NOT the same"
        launches = f"launches per forward: {work.launches or 0:g}"
        notes.append(f"{launches}, {same} in traced and untraced runs")
    if work.never_launched:
        notes.append(f"never launched: {', '.join(work.never_launched[:_MOST_ROWS])}")
    if work.ablation is not None:
        notes.append(f"without the program's own launches the outputs: {_ABLATIONS[work.ablation]}")
    return [Section("who did the work", ("share", "by", "calls", "what"), rows, tuple(notes))]


def _row(item: WorkItem) -> tuple[str, ...]:
    calls = "-" if item.calls is None else f"{item.calls:g}"
    return (f"{item.share:.1%}", _OWNERS[item.owner], calls, item.name)
