"""One iteration as spans in lanes, for the chart."""

from collections.abc import Collection, Sequence

from stitch_tools.models.profile import TimelineSpan
from stitch_tools.profile.host_ranges import NAMED, parse_module
from stitch_tools.profile.ownership import owner_of, short_name
from stitch_tools.profile.recorded_trace import (
    DeviceActivity,
    HostActivity,
    NamedRange,
    RecordedTrace,
)

MOST_SPANS = 1500
_MOST_MODULES = 200


def timeline_of(
    window: NamedRange,
    device: Sequence[DeviceActivity],
    launches: Sequence[HostActivity],
    trace: RecordedTrace,
    own: Collection[str],
) -> tuple[TimelineSpan, ...]:
    """The spans of one iteration; where there are too many, the longest of each lane.

    Modules come from the named iteration, which is slower: they are scaled to this one's length.
    """
    begin = window.start_ns
    running = [
        TimelineSpan(
            lane="device" if row.kind == "kernel" else "copy",
            name=short_name(row.name)[:80],
            start_us=(row.start_ns - begin) / 1e3,
            duration_us=(row.end_ns - row.start_ns) / 1e3,
            owner="copy" if row.kind != "kernel" else owner_of(row.name, own, is_reference=not own),
        )
        for row in device
    ]
    calls = [
        TimelineSpan(
            lane="launch",
            name=row.name[:80],
            start_us=(row.start_ns - begin) / 1e3,
            duration_us=(row.end_ns - row.start_ns) / 1e3,
        )
        for row in launches
    ]
    modules = _modules(window, trace)
    rest = MOST_SPANS - len(modules)
    spans = (*modules, *_longest(running, rest * 2 // 3), *_longest(calls, rest // 3))
    return tuple(sorted(spans, key=lambda span: (span.lane, span.start_us)))


def _longest(spans: list[TimelineSpan], most: int) -> list[TimelineSpan]:
    return sorted(spans, key=lambda span: -span.duration_us)[:most]


def _modules(window: NamedRange, trace: RecordedTrace) -> list[TimelineSpan]:
    named = trace.named(NAMED)
    if not named:
        return []
    first, last = named[0].start_ns, named[0].end_ns
    scale = (window.end_ns - window.start_ns) / max(1, last - first) / 1e3
    spans: list[TimelineSpan] = []
    for row in trace.ranges:
        module = parse_module(row.text)
        # The root's own span is the iteration.
        if module is None or not module[0] or not first <= row.start_ns < last:
            continue
        spans.append(
            TimelineSpan(
                lane="module",
                name=f"{module[0]} ({module[1]})"[:80],
                start_us=(row.start_ns - first) * scale,
                duration_us=(row.end_ns - row.start_ns) * scale,
            )
        )
    return _longest(spans, _MOST_MODULES)
