"""The system level from a recording: where the time of an iteration goes, host and device side by side."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from stitch_tools.models.graph import Graph, GraphNode
from stitch_tools.models.profile import (
    GapBucket,
    HostCall,
    KernelTime,
    ModuleTime,
    NodeTime,
    Origin,
    SystemProfile,
    Transfer,
)
from stitch_tools.profile.graph_nodes import match_nodes, node_times
from stitch_tools.profile.host_ranges import (
    CALIBRATION,
    CALL,
    ITERATION,
    NAMED,
    NestedRanges,
    Origins,
    read_named,
)
from stitch_tools.profile.ownership import owner_of, short_name
from stitch_tools.profile.recorded_trace import (
    DeviceActivity,
    HostActivity,
    NamedRange,
    RecordedTrace,
)
from stitch_tools.profile.timeline import timeline_of

MOST_KERNELS = 60
MOST_MODULES = 400
_GAP_BOUNDS_US = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0)
_LAUNCH = re.compile(r"(cuda|cu)(Launch(Cooperative)?Kernel|GraphLaunch|Mem(cpy|set))")
_GRAPH_LAUNCH = re.compile(r"(cuda|cu)GraphLaunch")
_SYNC = re.compile(r"(cuda|cu)(Device|Ctx|Stream|Event)Synchronize|(cuda|cu)Memcpy(?!.*Async)")
_MEMORY_CALL = re.compile(
    r"(cuda|cu)(Malloc|Free|MemAlloc|MemFree|MemCreate|MemMap|MemUnmap|HostAlloc|MemHostAlloc|HostRegister)"
)


class NoIterationError(Exception):
    """The recording holds no iteration: the region was never entered."""


class NoKernelsError(Exception):
    """Nothing ran on the device inside of the iterations."""


@dataclass(frozen=True)
class _Iteration:
    """One iteration with what happened in it."""

    window: NamedRange
    call: NamedRange
    device: Sequence[DeviceActivity]
    host: Sequence[HostActivity]


def summarize(
    trace: RecordedTrace,
    *,
    origin: Origin,
    own: Collection[str] = (),
    is_reference: bool,
    untraced_us: float | None = None,
    graph: Graph | None = None,
) -> SystemProfile:
    """The system profile of a recording on a GPU.

    Args:
        trace: what was recorded.
        origin: by which tool.
        own: names of the kernels that the program defines.
        is_reference: whether a reference was recorded.
        untraced_us: latency of the same call without a profiler.
        graph: the reference's, whose operations then get times.

    Raises:
        NoIterationError: the recording holds no iteration.
        NoKernelsError: nothing ran on the device.
    """
    iterations = _iterations(trace)
    if not any(row.device for row in iterations):
        raise NoKernelsError("nothing ran on the device")
    count = len(iterations)
    busy = [merged(row.device) for row in iterations]
    busy_us = sum(end - start for spans in busy for start, end in spans) / count / 1e3
    wall_us = sum(row.window.end_ns - row.window.start_ns for row in iterations) / count / 1e3
    named = read_named(trace)
    launched = _launched(iterations[0].device, trace, named)
    nodes = match_nodes(named.calls, graph) if graph is not None and is_reference else {}
    kernels, other_us = _kernel_rows(iterations, launched, own, nodes, is_reference=is_reference)
    launches = [_outermost(row.host, _LAUNCH) for row in iterations]
    return SystemProfile(
        origin=origin,
        iterations=count,
        wall_us=wall_us,
        untraced_us=untraced_us,
        busy_us=busy_us,
        busy_share=min(1.0, busy_us / wall_us) if wall_us else 0.0,
        launches=sum(map(len, launches)) / count,
        device_activities=sum(len(row.device) for row in iterations) / count,
        graph_launches=sum(len(_outermost(row.host, _GRAPH_LAUNCH)) for row in iterations) / count,
        gaps=_gaps(busy, count),
        idle_us=_idle_us(busy, count),
        host_between_launches_us=_between_us(launches),
        launch_calls_us=sum(row.end_ns - row.start_ns for rows in launches for row in rows) / count / 1e3,
        syncs=_host_calls(iterations, _SYNC),
        memory_calls=_host_calls(iterations, _MEMORY_CALL),
        transfers=_transfers(iterations),
        kernels=kernels,
        other_kernels_us=other_us,
        modules=_module_rows(launched, named),
        nodes=_node_rows(launched, nodes),
        timeline=timeline_of(iterations[0].window, iterations[0].device, launches[0], trace, own),
    )


def calibration_us(trace: RecordedTrace) -> float | None:
    """Mean recorded time of the short kernels, without the slowest tenth; None where none was recorded."""
    windows = trace.named(CALIBRATION)
    if not windows:
        return None
    window = windows[0]
    spans = sorted(
        (row.end_ns - row.start_ns) / 1e3
        for row in trace.device
        if row.kind == "kernel" and window.start_ns <= row.start_ns < window.end_ns
    )
    return fmean(spans[: len(spans) - len(spans) // 10]) if spans else None


def merged(rows: Sequence[DeviceActivity]) -> list[tuple[int, int]]:
    """The spans in which at least one of these ran, in order."""
    spans: list[tuple[int, int]] = []
    for row in rows:
        if spans and row.start_ns <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], row.end_ns)
        else:
            spans.append((row.start_ns, row.end_ns))
    return spans


def _iterations(trace: RecordedTrace) -> list[_Iteration]:
    calls = trace.named(CALL)
    result: list[_Iteration] = []
    for window in trace.named(ITERATION):
        first, last = window.start_ns, window.end_ns
        inside = [row for row in calls if first <= row.start_ns and row.end_ns <= last]
        if not inside:
            continue
        result.append(
            _Iteration(
                window,
                inside[0],
                [row for row in trace.device if first <= row.start_ns < last],
                [row for row in trace.host if first <= row.start_ns < last],
            )
        )
    if not result:
        raise NoIterationError("the profiler recorded no iteration")
    return result


def _outermost(rows: Sequence[HostActivity], pattern: re.Pattern[str]) -> list[HostActivity]:
    """Calls of a kind; the driver's call inside of the runtime's is no second one."""
    ends: defaultdict[int, int] = defaultdict(int)
    result: list[HostActivity] = []
    for row in rows:
        if pattern.match(row.name) and row.start_ns >= ends[row.thread]:
            result.append(row)
            ends[row.thread] = row.end_ns
    return result


def _between_us(launches: Sequence[Sequence[HostActivity]]) -> float | None:
    """Median host time from the end of one launch to the begin of the next."""
    between = [
        (after.start_ns - before.end_ns) / 1e3
        for rows in launches
        for before, after in itertools.pairwise(rows)
        if before.thread == after.thread
    ]
    return median(between) if between else None


def _host_calls(iterations: Sequence[_Iteration], pattern: re.Pattern[str]) -> tuple[HostCall, ...]:
    counts: Counter[str] = Counter()
    nanoseconds: Counter[str] = Counter()
    for row in iterations:
        # The runner's own wait comes after the call.
        inside = [call for call in row.host if row.call.start_ns <= call.start_ns < row.call.end_ns]
        for call in _outermost(inside, pattern):
            counts[call.name] += 1
            nanoseconds[call.name] += call.end_ns - call.start_ns
    total = len(iterations)
    return tuple(
        HostCall(name=name, count=counts[name] / total, total_us=spent / total / 1e3)
        for name, spent in nanoseconds.most_common(20)
    )


def _gaps(busy: Sequence[Sequence[tuple[int, int]]], count: int) -> tuple[GapBucket, ...]:
    gaps = [(after[0] - before[1]) / 1e3 for spans in busy for before, after in itertools.pairwise(spans)]
    result: list[GapBucket] = []
    low = 0.0
    for bound in (*_GAP_BOUNDS_US, None):
        high = float("inf") if bound is None else bound
        inside = [gap for gap in gaps if low <= gap < high]
        result.append(GapBucket(up_to_us=bound, count=len(inside) / count, total_us=sum(inside) / count))
        low = high
    return tuple(result)


def _idle_us(busy: Sequence[Sequence[tuple[int, int]]], count: int) -> float:
    total = 0
    for spans in busy:
        if spans:
            total += spans[-1][1] - spans[0][0] - sum(end - start for start, end in spans)
    return total / count / 1e3


def _transfers(iterations: Sequence[_Iteration]) -> tuple[Transfer, ...]:
    rows = [row for iteration in iterations for row in iteration.device if row.kind != "kernel"]
    count = len(iterations)
    result: list[Transfer] = []
    for direction in ("host_to_device", "device_to_host", "device_to_device", "fill", "other"):
        chosen = [row for row in rows if row.direction == direction]
        if not chosen:
            continue
        nbytes = sum(row.bytes for row in chosen)
        known = [row for row in chosen if row.pageable is not None]
        pageable = sum(row.bytes for row in known if row.pageable)
        share = pageable / max(1, sum(row.bytes for row in known)) if known else None
        result.append(
            Transfer(
                direction=direction,
                count=len(chosen) / count,
                bytes=nbytes / count,
                total_us=sum(row.end_ns - row.start_ns for row in chosen) / count / 1e3,
                pageable_share=share,
            )
        )
    return tuple(result)


@dataclass(frozen=True)
class _Launched:
    """An activity of an iteration without ranges, and where its like was launched in the one with them."""

    activity: DeviceActivity
    place: Origins

    @property
    def spent_ns(self) -> int:
        return self.activity.end_ns - self.activity.start_ns


def _launched(first: Sequence[DeviceActivity], trace: RecordedTrace, named: NestedRanges) -> list[_Launched]:
    windows = trace.named(NAMED)
    if not windows:
        return []
    window = windows[0]
    rows = [row for row in trace.device if window.start_ns <= row.start_ns < window.end_ns]
    # Both iterations launch the same kernels in the same order, or else names alone join them.
    same = [row.name for row in rows] == [row.name for row in first]
    return [
        _Launched(first[index] if same else row, named.origins.get(row.correlation, Origins()))
        for index, row in enumerate(rows)
    ]


def _node_rows(launched: Sequence[_Launched], nodes: Mapping[int, GraphNode]) -> tuple[NodeTime, ...]:
    """Operations of the graph with the time of what they launched."""
    spent_ns: Counter[int] = Counter()
    launches: Counter[int] = Counter()
    for row in launched:
        if row.place.call is not None:
            spent_ns[row.place.call] += row.spent_ns
            launches[row.place.call] += 1
    return node_times(spent_ns, launches, nodes)


def _main_place(rows: Sequence[_Launched]) -> Origins:
    """Module and operator of most of a kernel's time, and the call that took most there."""
    spent_ns: Counter[tuple[str, str]] = Counter()
    for row in rows:
        spent_ns[row.place.module, row.place.op] += row.spent_ns
    if not spent_ns:
        return Origins()
    main = spent_ns.most_common(1)[0][0]
    there = [row for row in rows if (row.place.module, row.place.op) == main]
    return max(there, key=lambda row: row.spent_ns).place


def _kernel_rows(
    iterations: Sequence[_Iteration],
    launched: Sequence[_Launched],
    own: Collection[str],
    nodes: Mapping[int, GraphNode],
    *,
    is_reference: bool,
) -> tuple[tuple[KernelTime, ...], float]:
    """The kernels by time, and the time of those that are not listed."""
    places: defaultdict[str, list[_Launched]] = defaultdict(list)
    for row in launched:
        places[row.activity.name].append(row)
    by_name: defaultdict[str, list[DeviceActivity]] = defaultdict(list)
    for iteration in iterations:
        for row in iteration.device:
            by_name[row.name].append(row)
    total_ns = sum(row.end_ns - row.start_ns for rows in by_name.values() for row in rows)
    count = len(iterations)
    result: list[KernelTime] = []
    for name, rows in by_name.items():
        spent = sum(row.end_ns - row.start_ns for row in rows)
        longest = max(rows, key=lambda row: row.end_ns - row.start_ns)
        place = _main_place(places[name])
        node = nodes.get(place.call) if place.call is not None else None
        owner = "copy" if longest.kind != "kernel" else owner_of(name, own, is_reference=is_reference)
        result.append(
            KernelTime(
                name=name[:400],
                short_name=short_name(name)[:120],
                count=len(rows) / count,
                total_us=spent / count / 1e3,
                share=spent / total_ns if total_ns else 0.0,
                owner=owner,
                module=place.module,
                op=place.op,
                node=node.name if node is not None else "",
                grid=longest.grid,
                block=longest.block,
                registers=longest.registers,
                shared_bytes=longest.shared_bytes,
            )
        )
    result.sort(key=lambda row: -row.total_us)
    return tuple(result[:MOST_KERNELS]), sum(row.total_us for row in result[MOST_KERNELS:])


def _module_rows(launched: Sequence[_Launched], named: NestedRanges) -> tuple[ModuleTime, ...]:
    """Modules in calling order, with the time of the kernels that they launched themselves."""
    device_ns: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for row in launched:
        device_ns[row.place.module] += row.spent_ns
        launches[row.place.module] += 1
    uses = sorted(named.modules.values(), key=lambda use: use.start_ns)
    return tuple(
        ModuleTime(
            path=use.path,
            type=use.type,
            calls=use.calls,
            device_us=device_ns[use.path] / 1e3,
            host_us=use.host_ns / 1e3,
            launches=launches[use.path],
        )
        for use in uses[:MOST_MODULES]
    )
