"""What moved between two sweeps."""

from collections.abc import Sequence

from stitch_mcp.suite.rows import SuiteProtocol, SuiteRow
from stitch_mcp.suite.summary import ended_words, figure, speedup_text, summarise, summary_lines
from stitch_mcp.views.table import ReportSection
from stitch_tools.models.base import Fact

LEAST_CHANGE = 0.03
"""A smaller change of a speedup is noise of the machine, whatever the intervals say."""
_COLUMNS = ("task", "ended, A", "ended, B", "over eager, A", "over eager, B", "B over A", "what moved")


class MovedTask(Fact):
    """A task that ended otherwise, or whose speedup changed by more than noise."""

    task: str
    what: str
    before: SuiteRow | None
    after: SuiteRow | None
    ratio: float | None
    """Speedup of the second sweep over that of the first."""


def moved_tasks(before: Sequence[SuiteRow], after: Sequence[SuiteRow]) -> list[MovedTask]:
    """The tasks that moved, those of both sweeps first by how much they lost, then those of one alone."""
    old, new = ({row.task: row for row in rows} for rows in (before, after))
    moved = [_moved(name, old.get(name), new.get(name)) for name in (*old, *(set(new) - set(old)))]
    found = [row for row in moved if row is not None]
    return sorted(
        found, key=lambda row: (row.before is None or row.after is None, row.ratio or 0.0, row.task)
    )


def compare_sections(
    first: tuple[SuiteProtocol, Sequence[SuiteRow]], second: tuple[SuiteProtocol, Sequence[SuiteRow]]
) -> list[ReportSection]:
    """What moved, and the figures of both sweeps, for people."""
    moved = moved_tasks(first[1], second[1])
    notes = [
        f"{letter}: {line}"
        for letter, (protocol, rows) in (("A", first), ("B", second))
        for line in (_command(protocol), *summary_lines(summarise(rows, protocol.task_count)))
    ]
    if (first[0].arguments, first[0].mode) != (second[0].arguments, second[0].mode):
        notes.append(
            "The sweeps have other options or another mode: their figures are of different questions."
        )
    devices = [sorted({row.device for row in rows if row.device}) for _, rows in (first, second)]
    if devices[0] != devices[1]:
        notes.append(f"The devices differ: {', '.join(devices[0])} in A, {', '.join(devices[1])} in B.")
    rows = tuple(
        (
            row.task,
            ended_words(row.before) if row.before else "",
            ended_words(row.after) if row.after else "",
            speedup_text(row.before) if row.before else "",
            speedup_text(row.after) if row.after else "",
            figure(row.ratio, "{:.2f}x"),
            row.what,
        )
        for row in moved
    )
    told = () if rows else ("No task moved.",)
    return [ReportSection(notes=tuple(notes)), ReportSection("What moved", _COLUMNS, rows, told)]


def _moved(name: str, old: SuiteRow | None, new: SuiteRow | None) -> MovedTask | None:
    if old is None or new is None:
        what = "only in B" if old is None else "only in A"
        return MovedTask(task=name, what=what, before=old, after=new, ratio=None)
    ratio = None
    if old.speedup and new.speedup and old.counts and new.counts:
        ratio = new.speedup / old.speedup
    if ended_words(old) != ended_words(new):
        return MovedTask(task=name, what="how it ended", before=old, after=new, ratio=ratio)
    if ratio is None or abs(ratio - 1.0) <= LEAST_CHANGE or not _apart(old, new):
        return None
    return MovedTask(
        task=name, what="faster" if ratio > 1.0 else "slower", before=old, after=new, ratio=ratio
    )


def _apart(old: SuiteRow, new: SuiteRow) -> bool:
    """Whether the intervals of both speedups do not overlap; so, too, where one has none."""
    if old.low is None or old.high is None or new.low is None or new.high is None:
        return True
    return new.low > old.high or new.high < old.low


def _command(protocol: SuiteProtocol) -> str:
    mode = f", mode {protocol.mode}" if protocol.mode else ""
    return f"stitch-mcp solve TASK {' '.join(protocol.arguments)} ({protocol.revision}{mode})."
