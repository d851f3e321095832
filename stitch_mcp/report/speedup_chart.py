"""A chart of speed-ups with their intervals, one group of marks a program, as inline SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 16, 56
"""Margins in SVG units, which are pixels where the chart is shown in its own size."""
_HEIGHT = 320
_SMALLEST_WIDTH = 340
"""Fits a phone."""
_STEPS = (1, 2, 5)
_FEWEST_TICKS, _MOST_TICKS = 3, 8
_MARKS = ("M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", "M-4,-4h8v8h-8z", "M0,-5L5,0L0,5L-5,0z", "M0,-5L5,4h-10z")
COLORS = 6
"""How many colors the page defines for series, as the classes s0, s1, ..."""


@dataclass(frozen=True)
class ChartPoint:
    """A measured speed-up of one program over one baseline."""

    baseline: str
    speedup: float
    low: float
    high: float

    @property
    def can_be_drawn(self) -> bool:
        """Whether it has a place on a logarithmic axis."""
        return all(math.isfinite(value) and value > 0 for value in (self.speedup, self.low, self.high))


@dataclass(frozen=True)
class ChartColumn:
    """What is known of one program."""

    label: str
    points: tuple[ChartPoint, ...]
    """() where nothing was measured."""
    remark: str = ""
    """Why there is no mark, or why the marks are to be doubted."""
    doubtful: bool = False
    """Whether the marks are drawn hollow: disturbed, or in doubt."""
    best: bool = False


@dataclass(frozen=True)
class _Scale:
    """A logarithmic axis."""

    low: float
    high: float

    def y(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def ticks(self) -> list[float]:
        """Round values, 1 among them: 1, 2, 5, 10, ... or, on a short axis, evenly spaced ones."""
        first, last = (math.floor(math.log10(value)) for value in (self.low, self.high))
        every = [step * 10.0**power for power in range(first, last + 1) for step in _STEPS]
        found = [value for value in every if self.low <= value <= self.high]
        if len(found) >= _FEWEST_TICKS:
            # On a long axis the powers of ten alone.
            return (
                found
                if len(found) <= 2 * _MOST_TICKS
                else [10.0**power for power in range(first + 1, last + 1)]
            )
        sizes = (step * 10.0**power for power in range(-6, 2) for step in _STEPS)
        size = next(size for size in sizes if (self.high - self.low) / size <= _MOST_TICKS)
        return [
            number * size for number in range(math.ceil(self.low / size), math.floor(self.high / size) + 1)
        ]


def baselines(columns: Sequence[ChartColumn]) -> list[str]:
    """The baselines that have a mark, in the order in which they were met."""
    named = [point.baseline for column in columns for point in column.points if point.can_be_drawn]
    return list(dict.fromkeys(named))


def draw_chart(columns: Sequence[ChartColumn]) -> str:
    """The chart as an SVG element: a logarithmic axis, a line at 1, one column a program.

    Where nothing was measured there is no mark, only the column's remark.
    """
    series = baselines(columns)
    spacing = max(14, min(24, 120 // max(1, len(series))))
    slot = max(76, spacing * (len(series) + 1))
    width = max(_SMALLEST_WIDTH, _LEFT + _RIGHT + slot * len(columns))
    slot = (width - _LEFT - _RIGHT) / max(1, len(columns))
    label = "Speed-up of each program over its baselines, with 95% intervals; the table below has the figures"
    size = {"viewBox": f"0 0 {width} {_HEIGHT}", "width": str(width), "height": str(_HEIGHT)}
    svg = Element("svg", {**size, "role": "img", "aria-label": label})
    scale = _scale(columns)
    _draw_axis(svg, scale, width)
    for number, column in enumerate(columns):
        center = _LEFT + slot * (number + 0.5)
        _draw_labels(svg, column, center)
        for point in column.points:
            if point.can_be_drawn:
                place = series.index(point.baseline)
                x = center + (place - (len(series) - 1) / 2) * spacing
                _draw_point(svg, scale, point, column, x, place)
    return tostring(svg, encoding="unicode")


def legend_mark(place: int) -> str:
    """The mark of the series with that number, as an SVG element."""
    svg = Element("svg", {"viewBox": "-8 -8 16 16", "width": "16", "height": "16", "aria-hidden": "true"})
    SubElement(svg, "path", {"class": f"mark s{place % COLORS}", "d": _MARKS[place % len(_MARKS)]})
    return tostring(svg, encoding="unicode")


def _scale(columns: Sequence[ChartColumn]) -> _Scale:
    points = [point for column in columns for point in column.points if point.can_be_drawn]
    # 1 is always in the picture: below it a program is slower.
    low = min([1.0, *(min(point.low, point.speedup) for point in points)])
    high = max([1.0, *(max(point.high, point.speedup) for point in points)])
    return _Scale(low / 1.15, high * 1.15)


def _draw_axis(svg: Element, scale: _Scale, width: int) -> None:
    for value in scale.ticks():
        y = f"{scale.y(value):.1f}"
        name = "one" if math.isclose(value, 1) else "grid"
        SubElement(
            svg, "line", {"class": name, "x1": str(_LEFT), "x2": str(width - _RIGHT), "y1": y, "y2": y}
        )
        text = SubElement(svg, "text", {"x": str(_LEFT - 8), "y": y, "dy": "4", "text-anchor": "end"})
        text.text = f"{value:.3g}x"


def _draw_labels(svg: Element, column: ChartColumn, center: float) -> None:
    x = f"{center:.1f}"
    rows = (f"{column.label} (best)" if column.best else column.label, column.remark)
    for number, words in enumerate(rows):
        if words:
            y = str(_HEIGHT - _BOTTOM + 20 + 16 * number)
            kind = "remark" if number else "label"
            text = SubElement(svg, "text", {"class": kind, "x": x, "y": y, "text-anchor": "middle"})
            text.text = words


def _draw_point(
    svg: Element, scale: _Scale, point: ChartPoint, column: ChartColumn, x: float, place: int
) -> None:
    doubt = " doubtful" if column.doubtful else ""
    group = SubElement(svg, "g", {"class": f"s{place % COLORS}{doubt}"})
    remark = f" ({column.remark})" if column.remark else ""
    interval = f"{point.speedup:.2f}x, 95% interval {point.low:.2f} to {point.high:.2f}"
    SubElement(group, "title").text = f"program {column.label} over {point.baseline}: {interval}{remark}"
    low, high = f"{scale.y(point.low):.1f}", f"{scale.y(point.high):.1f}"
    ends = "".join(f"M{x - 4:.1f},{y}h8" for y in (low, high))
    SubElement(group, "path", {"class": "interval", "d": f"M{x:.1f},{low}V{high}{ends}"})
    move = f"translate({x:.1f},{scale.y(point.speedup):.1f})"
    SubElement(group, "path", {"class": "mark", "transform": move, "d": _MARKS[place % len(_MARKS)]})
