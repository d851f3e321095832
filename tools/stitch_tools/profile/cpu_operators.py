"""The system level of a reference on a CPU: operators with their own time, from PyTorch's profiler."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

from stitch_tools.models.graph import Graph
from stitch_tools.models.profile import (
    KernelTime,
    ModuleTime,
    NodeTime,
    SystemProfile,
    TimelineSpan,
    TimeOwner,
)
from stitch_tools.profile.graph_nodes import match_nodes, node_times
from stitch_tools.profile.host_ranges import (
    ITERATION,
    NAMED,
    OperatorUse,
    operator_uses,
    outermost_calls,
    read_named,
)
from stitch_tools.profile.recorded_trace import NamedRange, RecordedTrace
from stitch_tools.profile.system import MOST_KERNELS, MOST_MODULES, NoIterationError

_VENDOR = ("mkldnn::", "onednn::")
_MOST_SPANS = 1500
# An iteration that took so many times the median was interrupted: its time is the machine's.
_INTERRUPTED = 3.0


def summarize_cpu(
    trace: RecordedTrace, *, untraced_us: float | None = None, graph: Graph | None = None
) -> SystemProfile:
    """The system profile of a recording on a CPU; `busy_us` is the time inside of operators.

    `graph` is the reference's, whose operations then get times.

    Raises:
        NoIterationError: the recording holds no iteration.
    """
    windows = trace.named(ITERATION)
    if not windows:
        raise NoIterationError("the profiler recorded no iteration")
    usual = median(row.end_ns - row.start_ns for row in windows)
    windows = [row for row in windows if row.end_ns - row.start_ns <= _INTERRUPTED * usual]
    uses = [operator_uses(trace, window) for window in windows]
    count = len(windows)
    wall_us = sum(row.end_ns - row.start_ns for row in windows) / count / 1e3
    busy_us = sum(use.self_ns for rows in uses for use in rows) / count / 1e3
    kernels, other_us = _rows(uses, trace, count)
    return SystemProfile(
        origin="torch.profiler",
        iterations=count,
        wall_us=wall_us,
        untraced_us=untraced_us,
        busy_us=busy_us,
        busy_share=min(1.0, busy_us / wall_us) if wall_us else 0.0,
        kernels=kernels,
        other_kernels_us=other_us,
        modules=_modules(trace),
        nodes=_nodes(trace, windows, graph) if graph is not None else (),
        timeline=_timeline(windows[0], uses[0]),
    )


def _rows(
    uses: list[list[OperatorUse]], trace: RecordedTrace, count: int
) -> tuple[tuple[KernelTime, ...], float]:
    self_ns: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for rows in uses:
        for use in rows:
            self_ns[use.name] += use.self_ns
            calls[use.name] += 1
    places: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for window in trace.named(NAMED)[:1]:
        for use in operator_uses(trace, window):
            places[use.name][use.module] += use.self_ns
    total = sum(self_ns.values())
    result = [
        KernelTime(
            name=name,
            short_name=name.rpartition("::")[2],
            count=calls[name] / count,
            total_us=spent / count / 1e3,
            share=spent / total if total else 0.0,
            owner=_owner(name),
            module=places[name].most_common(1)[0][0] if places[name] else "",
            op=name,
        )
        for name, spent in self_ns.most_common()
    ]
    return tuple(result[:MOST_KERNELS]), sum(row.total_us for row in result[MOST_KERNELS:])


def _owner(name: str) -> TimeOwner:
    if name.startswith(_VENDOR) or name in ("aten::mkldnn_convolution", "aten::mkldnn_rnn_layer"):
        return "vendor"
    if name in ("aten::copy_", "aten::fill_", "aten::zero_"):
        return "copy"
    return "pytorch"


def _modules(trace: RecordedTrace) -> tuple[ModuleTime, ...]:
    uses = sorted(read_named(trace).modules.values(), key=lambda use: use.start_ns)
    return tuple(
        ModuleTime(path=use.path, type=use.type, calls=use.calls, device_us=None, host_us=use.host_ns / 1e3)
        for use in uses[:MOST_MODULES]
    )


def _nodes(trace: RecordedTrace, windows: Sequence[NamedRange], graph: Graph) -> tuple[NodeTime, ...]:
    """Operations of the graph: the iteration with ranges says what they are, the others their times."""
    calls = read_named(trace).calls
    names = [call.name for call in calls]
    timed = [outermost_calls(trace, window) for window in windows]
    alike = [rows for rows in timed if [row.name for row in rows] == names]
    spent_ns = {
        position: sum(row.duration_ns for row in rows) / len(rows)
        for position, rows in enumerate(zip(*alike, strict=True))
    }
    return node_times(spent_ns, None, match_nodes(calls, graph))


def _timeline(window: NamedRange, uses: list[OperatorUse]) -> tuple[TimelineSpan, ...]:
    longest = sorted(uses, key=lambda use: -use.self_ns)[:_MOST_SPANS]
    return tuple(
        TimelineSpan(
            lane="host",
            name=use.name[:80],
            start_us=(use.start_ns - window.start_ns) / 1e3,
            duration_us=use.self_ns / 1e3,
            owner=_owner(use.name),
        )
        for use in sorted(longest, key=lambda use: use.start_ns)
    )
