"""Time inside PyTorch's operators on a CPU, by the profiler's records of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from stitch_tools.worker.candidate.activity.profiler_records import (
    MARK,
    ProfilerEvent,
    is_operator,
    is_pytorch,
)

# They move no data themselves: memory, shapes and types only; where one of them copies, that is an operator
# inside of it. (One string: thirty quotes would hide the names.)
_FREE = frozenset(
    """empty empty_strided empty_like view _unsafe_view reshape as_strided alias detach t transpose permute
    expand squeeze unsqueeze select slice narrow split unbind chunk lift_fresh resize_ set_ is_same_size
    _local_scalar_dense item contiguous to resolve_conj resolve_neg""".split()  # noqa: SIM905
)


# A call that took so many times the median was interrupted: its time is the machine's, and nobody's work.
_INTERRUPTED = 3.0


@dataclass(frozen=True)
class OperatorTime:
    """Where the time of the marked calls went."""

    nanoseconds: Counter[str]
    """By the outermost operator that computes."""
    outside_ns: int
    """Time in which no thread was inside of one."""
    calls: int
    """Marked calls that count."""


def operator_time(events: Iterable[ProfilerEvent]) -> OperatorTime:
    """Time in and outside of PyTorch's operators, summed over the marked calls that nothing interrupted."""
    calls: list[tuple[int, int]] = []
    operators: list[tuple[int, int, str]] = []
    for event in events:
        start, name = event.start_ns(), event.name()
        if name.startswith(MARK):
            calls.append((start, start + event.duration_ns()))
        elif is_operator(event) and _computes(name):
            operators.append((start, start + event.duration_ns(), name))
    # The longest of those that begin together is the outermost.
    operators.sort(key=lambda row: (row[0], -row[1]))
    nanoseconds: Counter[str] = Counter()
    outside_ns = 0
    longest = _INTERRUPTED * median(last - first for first, last in calls) if calls else 0.0
    calls = [call for call in calls if call[1] - call[0] <= longest]
    for first, last in calls:
        inside = _inside(operators, first, last)
        nanoseconds += inside
        outside_ns += last - first - inside.total()
    return OperatorTime(nanoseconds, outside_ns, len(calls))


def _inside(operators: list[tuple[int, int, str]], first: int, last: int) -> Counter[str]:
    """Time of one call by operator. Operators of several threads at once count once, like nested ones."""
    result: Counter[str] = Counter()
    covered = first
    for start, end, name in operators:
        begin, stop = max(start, covered), min(end, last)
        if begin < stop:
            result[name] += stop - begin
            covered = stop
    return result


def _computes(name: str) -> bool:
    return is_pytorch(name) and name.rpartition("::")[2] not in _FREE
