"""The chart as SVG: marks where something was measured, in the right place."""

import math
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_mcp.report.speedup_chart import ChartColumn, ChartPoint, draw_chart


def chart(*columns: ChartColumn) -> Element:
    return fromstring(draw_chart(columns))


def column(*points: tuple[str, float, float, float], label: str = "000") -> ChartColumn:
    return ChartColumn(label, tuple(ChartPoint(*point) for point in points))


def heights(svg: Element) -> list[float]:
    """The y of each mark."""
    marks = [node.attrib["transform"] for node in svg.iter("path") if node.attrib["class"] == "mark"]
    return [float(move.removesuffix(")").partition(",")[2]) for move in marks]


def line_at_one(svg: Element) -> float:
    (line,) = [node for node in svg.iter("line") if node.attrib["class"] == "one"]
    return float(line.attrib["y1"])


def tick_labels(svg: Element) -> list[str]:
    return [node.text or "" for node in svg.iter("text") if node.attrib["text-anchor"] == "end"]


def test_faster_is_above_the_line_at_one_and_slower_below() -> None:
    svg = chart(column(("eager", 2.0, 1.8, 2.2)), column(("eager", 0.5, 0.4, 0.6)))
    above, below = heights(svg)
    one = line_at_one(svg)
    assert above < one < below
    # The axis is logarithmic: twice as fast and half as fast are equally far away.
    assert one - above == pytest.approx(below - one, abs=0.2)


def test_nothing_measured_is_no_mark() -> None:
    svg = chart(ChartColumn("000", (), remark="crashed"))
    assert heights(svg) == []
    assert [node.text for node in svg.iter("text") if node.attrib.get("class") == "remark"] == ["crashed"]
    assert line_at_one(svg)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_figure_without_a_place_on_the_axis_is_no_mark(value: float) -> None:
    svg = chart(column(("eager", 2.0, value, 3.0)), column(("eager", value, 1.0, 3.0)))
    assert heights(svg) == []


def test_baselines_keep_their_color_and_place_in_every_column() -> None:
    svg = chart(
        column(("eager", 2.0, 1.8, 2.2), ("compile:default", 1.1, 1.0, 1.2)),
        column(("compile:default", 1.3, 1.2, 1.4)),
    )
    assert [node.attrib["class"] for node in svg.iter("g")] == ["s0", "s1", "s1"]


def test_names_of_baselines_are_escaped() -> None:
    drawn = draw_chart([column(("<script>", 2.0, 1.8, 2.2))])
    assert "<script>" not in drawn
    assert "&lt;script&gt;" in drawn


@given(
    low=st.floats(1e-4, 1e4),
    steps=st.tuples(st.floats(1.0, 100.0), st.floats(1.0, 100.0)),
)
def test_every_axis_has_some_lines_and_every_mark_is_inside(low: float, steps: tuple[float, float]) -> None:
    middle, high = low * steps[0], low * steps[0] * steps[1]
    svg = chart(column(("eager", middle, low, high)))
    labels = tick_labels(svg)
    assert 2 <= len(labels) <= 16
    assert len(set(labels)) == len(labels)
    assert labels.count("1x") == 1
    height = float(svg.attrib["height"])
    assert all(0 < y < height for y in heights(svg))


def test_many_programs_make_the_chart_wider() -> None:
    few = chart(*[column(("eager", 2.0, 1.8, 2.2))] * 2)
    many = chart(*[column(("eager", 2.0, 1.8, 2.2))] * 60)
    assert float(many.attrib["width"]) > 10 * 76 > float(few.attrib["width"])
