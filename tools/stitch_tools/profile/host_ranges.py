"""Which module and which operator each launch and each operator of a recording lies in."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stitch_tools.profile.recorded_trace import NamedRange, RecordedTrace

ITERATION, CALL, NAMED = "stitch:iteration", "stitch:call", "stitch:named"
CALIBRATION = "stitch:calibration"
MODULE = "stitch:module:"
_OURS = "stitch:"


@dataclass(frozen=True)
class Origins:
    """Where something was called: "" is the root, or unknown."""

    module: str = ""
    op: str = ""
    call: int | None = None
    """Position among the operators that modules call themselves; None outside of them."""


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator by a module's own code, with all that it calls in turn."""

    name: str
    module: str
    duration_ns: int


@dataclass
class ModuleUse:
    """A module in the iteration that has ranges."""

    path: str
    type: str
    calls: int = 0
    host_ns: int = 0
    start_ns: int = 0


@dataclass
class NestedRanges:
    """The ranges of the named iteration, as a tree read in order of time."""

    origins: dict[int, Origins] = field(default_factory=dict[int, Origins])
    """By correlation id of a launch."""
    modules: dict[str, ModuleUse] = field(default_factory=dict[str, ModuleUse])
    calls: list[OperatorCall] = field(default_factory=list[OperatorCall])
    """Operators that modules call themselves, by their begin."""


@dataclass(frozen=True)
class OperatorUse:
    """One call of an operator, without what it called in turn."""

    name: str
    module: str
    start_ns: int
    self_ns: int


def parse_module(text: str) -> tuple[str, str] | None:
    """Path and class of a module's range, None of any other."""
    if not text.startswith(MODULE):
        return None
    path, _, kind = text.removeprefix(MODULE).rpartition("|")
    return path, kind


def operator_name(text: str) -> str:
    """An operator's range without the sequence numbers that torch adds ("aten::add, op_id = 3")."""
    return text.partition(",")[0].strip()


def read_named(trace: RecordedTrace) -> NestedRanges:
    """Modules of the named iteration, and where its launches were made."""
    result = NestedRanges()
    windows = trace.named(NAMED)
    if not windows:
        return result
    window = windows[0]
    inside = [row for row in trace.ranges if _within(row, window)]
    calls = [row for row in trace.host if window.start_ns <= row.start_ns < window.end_ns]
    for row in inside:
        named = parse_module(row.text)
        if named is not None:
            path, kind = named
            use = result.modules.setdefault(path, ModuleUse(path, kind, start_ns=row.start_ns))
            use.calls += 1
            use.host_ns += row.end_ns - row.start_ns
    moments = sorted(
        [(row.start_ns, 0, row) for row in inside] + [(row.start_ns, 1, row) for row in calls],
        key=lambda item: (item[0], item[1]),
    )
    opened: defaultdict[int, list[NamedRange]] = defaultdict(list)
    positions: dict[int, int] = {}
    for start, _, row in moments:
        stack = opened[row.thread]
        while stack and stack[-1].end_ns <= start:
            stack.pop()
        if not isinstance(row, NamedRange):
            result.origins[row.correlation] = _origins(stack, positions)
            continue
        if not row.text.startswith(_OURS) and (not stack or stack[-1].text.startswith(_OURS)):
            positions[id(row)] = len(result.calls)
            name, module = operator_name(row.text), _origins(stack, positions).module
            result.calls.append(OperatorCall(name, module, row.end_ns - row.start_ns))
        stack.append(row)
    return result


def outermost_calls(trace: RecordedTrace, window: NamedRange) -> list[OperatorCall]:
    """The operators of a window that no other operator calls; without ranges their module is not known."""
    result: list[OperatorCall] = []
    ends: defaultdict[int, int] = defaultdict(int)
    for row in trace.ranges:
        if _within(row, window) and not row.text.startswith(_OURS) and row.start_ns >= ends[row.thread]:
            ends[row.thread] = row.end_ns
            result.append(OperatorCall(operator_name(row.text), "", row.end_ns - row.start_ns))
    return result


def _within(row: NamedRange, window: NamedRange) -> bool:
    return row is not window and window.start_ns <= row.start_ns and row.end_ns <= window.end_ns


def _origins(stack: Sequence[NamedRange], positions: Mapping[int, int]) -> Origins:
    module, op, call = "", "", None
    for row in reversed(stack):
        named = parse_module(row.text)
        if named is not None:
            module = named[0]
            break
        if row.text.startswith(_OURS):
            continue
        # The innermost operator launches; the ones around it only say what called it.
        op = op or operator_name(row.text)
        call = positions.get(id(row), call)
    return Origins(module, op, call)


def operator_uses(trace: RecordedTrace, window: NamedRange) -> list[OperatorUse]:
    """The operators inside a window with their own time, in order of their starts (cpu)."""
    rows = [row for row in trace.ranges if _within(row, window) and row.text not in (CALL,)]
    self_ns = {id(row): row.end_ns - row.start_ns for row in rows}
    modules: dict[int, str] = {}
    opened: defaultdict[int, list[NamedRange]] = defaultdict(list)
    for row in rows:
        stack = opened[row.thread]
        while stack and stack[-1].end_ns <= row.start_ns:
            stack.pop()
        named = parse_module(row.text)
        outer = modules[id(stack[-1])] if stack else ""
        modules[id(row)] = named[0] if named is not None else outer
        if stack:
            self_ns[id(stack[-1])] -= row.end_ns - row.start_ns
        stack.append(row)
    return [
        OperatorUse(operator_name(row.text), modules[id(row)], row.start_ns, max(0, self_ns[id(row)]))
        for row in rows
        if not row.text.startswith(_OURS)
    ]
