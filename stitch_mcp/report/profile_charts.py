"""Charts of a profile as SVG elements that need nothing else: timeline, roofline, time by owner, gaps."""

import math
from collections.abc import Sequence
from html import escape
from xml.etree.ElementTree import Element, SubElement, tostring

from stitch_tools.models.graph import Ceilings
from stitch_tools.models.profile import Profile, RooflinePoint, SystemProfile, TimelineSpan

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 40
_COLORS = {
    "own": "#2563a8",
    "vendor": "#3d8b57",
    "pytorch": "#b3541e",
    "copy": "#7a4fa3",
    "other": "#777777",
}
_LANES = ("module", "host", "launch", "device", "copy")
_LANE_HEIGHT, _ROW = 26, 32
_NARROWEST = 0.3
"""Width in SVG units below which a span would not be seen."""


def draw_timeline(system: SystemProfile) -> str:
    """One iteration: modules, host calls, launches, kernels and copies over time; "" without spans."""
    spans = system.timeline
    if not spans:
        return ""
    lanes = [lane for lane in _LANES if any(span.lane == lane for span in spans)]
    end = max(span.start_us + span.duration_us for span in spans)
    height = _TOP + _ROW * len(lanes) + _BOTTOM
    svg = _svg(height, "Timeline of one iteration: when modules, launches and kernels ran")
    for place, lane in enumerate(lanes):
        y = _TOP + _ROW * place
        _text(svg, _LEFT - 6, y + _LANE_HEIGHT / 2 + 4, lane, anchor="end")
        for span in spans:
            if span.lane == lane:
                _draw_span(svg, span, y, end)
    _time_axis(svg, height - _BOTTOM + 4, end)
    return tostring(svg, encoding="unicode")


def _draw_span(svg: Element, span: TimelineSpan, y: float, end_us: float) -> None:
    scale = (_WIDTH - _LEFT - _RIGHT) / max(end_us, 1e-9)
    box = {
        "x": f"{_LEFT + span.start_us * scale:.2f}",
        "y": f"{y:.1f}",
        "width": f"{max(_NARROWEST, span.duration_us * scale):.2f}",
        "height": str(_LANE_HEIGHT),
        "fill": _COLORS[span.owner],
        "fill-opacity": "0.35" if span.lane == "module" else "0.9",
    }
    rect = SubElement(svg, "rect", box)
    _title(rect, f"{span.name}: {span.duration_us:.2f} us from {span.start_us:.1f} us on")


def _time_axis(svg: Element, y: float, end_us: float) -> None:
    _line(svg, _LEFT, y, _WIDTH - _RIGHT, y)
    for step in range(6):
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / 5
        _text(svg, x, y + 18, f"{end_us * step / 5:.4g}", anchor="middle")
    _text(svg, _WIDTH - _RIGHT, y + 32, "us", anchor="end")


def draw_owners(system: SystemProfile) -> str:
    """Time of kernels or operators by whose they are: one bar, its parts named; "" without any."""
    parts = [(owner, system.owner_us(owner)) for owner in ("own", "vendor", "pytorch", "copy", "other")]
    parts = [(owner, spent) for owner, spent in parts if spent > 0]
    whole = sum(spent for _, spent in parts)
    if not whole:
        return ""
    svg = _svg(110, "Time by owner of the kernels or operators")
    x = float(_LEFT)
    for owner, spent in parts:
        width = (_WIDTH - _LEFT - _RIGHT) * spent / whole
        box = {"x": f"{x:.2f}", "y": "20", "width": f"{width:.2f}", "height": "36", "fill": _COLORS[owner]}
        _title(SubElement(svg, "rect", box), f"{owner}: {spent:.1f} us, {spent / whole:.1%}")
        x += width
    place = float(_LEFT)
    for owner, spent in parts:
        SubElement(
            svg,
            "rect",
            {"x": f"{place:.0f}", "y": "72", "width": "10", "height": "10", "fill": _COLORS[owner]},
        )
        label = f"{owner} {spent / whole:.0%}"
        _text(svg, place + 14, 82, label)
        place += 30 + 7.5 * len(label)
    return tostring(svg, encoding="unicode")


def draw_gaps(system: SystemProfile) -> str:
    """Idle time of the device by length of the gap; "" where no gaps were recorded."""
    rows = system.gaps
    most = max((row.total_us for row in rows), default=0.0)
    if not most:
        return ""
    svg = _svg(_HEIGHT, "Idle time between kernels by length of the gap")
    slot = (_WIDTH - _LEFT - _RIGHT) / len(rows)
    floor = _HEIGHT - _BOTTOM
    for place, row in enumerate(rows):
        height = (floor - _TOP) * row.total_us / most
        x = _LEFT + slot * place
        box = {
            "x": f"{x + 3:.1f}",
            "y": f"{floor - height:.1f}",
            "width": f"{slot - 6:.1f}",
            "height": f"{height:.1f}",
            "fill": _COLORS["own"],
        }
        bound = f"< {row.up_to_us:g}" if row.up_to_us is not None else "longer"
        _title(SubElement(svg, "rect", box), f"{row.count:.1f} gaps {bound} us: {row.total_us:.1f} us")
        _text(svg, x + slot / 2, floor + 16, bound, anchor="middle")
    _line(svg, _LEFT, floor, _WIDTH - _RIGHT, floor)
    _text(svg, _LEFT - 6, _TOP + 8, f"{most:.4g} us", anchor="end")
    _text(svg, _WIDTH - _RIGHT, floor + 32, "length of a gap, us", anchor="end")
    return tostring(svg, encoding="unicode")


def draw_roofline(points: Sequence[RooflinePoint], ceilings: Ceilings | None) -> str:
    """FLOP/s over FLOPs per byte, both logarithmic, under the measured roofs; "" without points."""
    placed = [
        (point, intensity, point.flops / point.time_us * 1e6)
        for point in points
        if (intensity := point.intensity) and point.flops and point.time_us
    ]
    if not placed:
        return ""
    rates = dict(ceilings.flops_per_s) if ceilings is not None else {}
    xs = [row[1] for row in placed]
    ys = [row[2] for row in placed] + list(rates.values())
    x_range = _decades(xs, least=2)
    y_range = _decades(ys, least=2)
    svg = _svg(_HEIGHT, "Roofline: operations per second over operations per byte, with the measured roofs")
    _roofs(svg, ceilings, x_range, y_range)
    for point, intensity, rate in placed:
        circle = {
            "cx": f"{_log_x(intensity, x_range):.1f}",
            "cy": f"{_log_y(rate, y_range):.1f}",
            "r": "7" if point.name == "whole" else "4",
            "fill": _COLORS["vendor" if point.name == "whole" else "own"],
            "fill-opacity": "0.8",
        }
        share = f", {point.share_of_ceiling:.0%} of its bound" if point.share_of_ceiling is not None else ""
        said = f"{point.name}: {rate / 1e12:.3g} TFLOP/s at {intensity:.3g} FLOP/B{share}"
        _title(SubElement(svg, "circle", circle), said)
    floor = _HEIGHT - _BOTTOM
    _line(svg, _LEFT, floor, _WIDTH - _RIGHT, floor)
    _line(svg, _LEFT, _TOP, _LEFT, floor)
    for exponent in range(x_range[0], x_range[1] + 1):
        _text(svg, _log_x(10.0**exponent, x_range), floor + 16, f"{10.0**exponent:g}", anchor="middle")
    for exponent in range(y_range[0], y_range[1] + 1):
        _text(svg, _LEFT - 6, _log_y(10.0**exponent, y_range) + 4, f"1e{exponent}", anchor="end")
    _text(svg, _WIDTH - _RIGHT, floor + 32, "FLOP per byte", anchor="end")
    return tostring(svg, encoding="unicode")


def _roofs(
    svg: Element, ceilings: Ceilings | None, x_range: tuple[int, int], y_range: tuple[int, int]
) -> None:
    if ceilings is None:
        return
    low, high = 10.0 ** x_range[0], 10.0 ** x_range[1]
    bandwidth = ceilings.copy_bytes_per_s
    for name, rate in ceilings.flops_per_s.items():
        knee = min(max(rate / bandwidth, low), high)
        # Below the knee memory limits; a roof begins where its slope meets the chart's bottom.
        first = max(low, 10.0 ** y_range[0] / bandwidth)
        if first < knee:
            _line(
                svg,
                _log_x(first, x_range),
                _log_y(first * bandwidth, y_range),
                _log_x(knee, x_range),
                _log_y(knee * bandwidth, y_range),
                dashed=True,
            )
        y = _log_y(rate, y_range)
        _line(svg, _log_x(knee, x_range), y, _WIDTH - _RIGHT, y, dashed=True)
        _text(svg, _WIDTH - _RIGHT, y - 4, name, anchor="end")


def _decades(values: Sequence[float], *, least: int) -> tuple[int, int]:
    low = math.floor(math.log10(min(values)))
    return low, max(low + least, math.ceil(math.log10(max(values))))


def _log_x(value: float, span: tuple[int, int]) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log10(value) - span[0]) / (span[1] - span[0])


def _log_y(value: float, span: tuple[int, int]) -> float:
    floor = _HEIGHT - _BOTTOM
    return floor - (floor - _TOP) * (math.log10(value) - span[0]) / (span[1] - span[0])


def _svg(height: float, label: str) -> Element:
    size = {"viewBox": f"0 0 {_WIDTH} {height:g}", "width": str(_WIDTH), "height": f"{height:g}"}
    style = "font: 12px system-ui, sans-serif; color: currentColor"
    # The name space makes the element a picture also in a file of its own.
    return Element(
        "svg",
        {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img", "aria-label": label, "style": style},
    )


def _text(svg: Element, x: float, y: float, text: str, *, anchor: str = "start") -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "fill": "currentColor"}
    SubElement(svg, "text", place).text = text


def _line(svg: Element, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> None:
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    dashes = {"stroke-dasharray": "4 3"} if dashed else {}
    SubElement(svg, "line", {**ends, "stroke": "currentColor", "stroke-opacity": "0.6", **dashes})


def _title(element: Element, text: str) -> None:
    SubElement(element, "title").text = text


def charts_of(profile: Profile, ceilings: Ceilings | None = None) -> tuple[tuple[str, str], ...]:
    """Heading and SVG element of each chart that the profile has data for."""
    system = profile.system
    drawn = [
        ("One iteration", draw_timeline(system) if system is not None else ""),
        ("Roofline", draw_roofline(profile.roofline, ceilings)),
        ("Time by owner", draw_owners(system) if system is not None else ""),
        ("Gaps between kernels", draw_gaps(system) if system is not None else ""),
    ]
    return tuple((title, svg) for title, svg in drawn if svg)


def charts_page(profile: Profile, ceilings: Ceilings | None = None) -> str:
    """The charts as one HTML page that needs nothing else."""
    parts = "\n".join(f"<h2>{escape(title)}</h2>\n{svg}" for title, svg in charts_of(profile, ceilings))
    name = escape(f"Profile of {profile.subject} {profile.subject_id[:12]} on {profile.device}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title></head>\n'
        f"<body>\n<h1>{name}</h1>\n{parts}\n</body></html>\n"
    )
