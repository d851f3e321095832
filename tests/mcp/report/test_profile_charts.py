"""The charts of a profile are pictures that need nothing else."""

from pathlib import Path
from xml.etree.ElementTree import fromstring

from stitch_mcp.report.profile_charts import charts_of, charts_page, draw_gaps, draw_roofline
from stitch_tools.models.graph import Ceilings
from stitch_tools.models.profile import Profile, RooflinePoint
from stitch_tools.profile.recorded_trace import read_trace
from stitch_tools.profile.system import summarize
from tests.tools.profile_support import host_bound_recording

SVG = "{http://www.w3.org/2000/svg}"
CEILINGS = Ceilings(
    device="a GPU",
    target="cuda:sm_90",
    copy_bytes_per_s=3e12,
    last_level_cache_bytes=50 << 20,
    flops_per_s={"fp32": 5e13, "tf32": 4e14},
    launch_us=1.5,
)
POINTS = (
    RooflinePoint(
        name="whole",
        time_us=100.0,
        flops=1e9,
        bytes=1e7,
        bound_us=20.0,
        bound_by="compute",
        time_origin="benchmark",
    ),
    RooflinePoint(name="<evil> & layer", time_us=10.0, flops=1e6, bytes=1e7, time_origin="nsys"),
    RooflinePoint(name="no work known", time_us=10.0, time_origin="nsys"),
)


def profile_of(tmp_path: Path) -> Profile:
    trace = read_trace(host_bound_recording(tmp_path / "r.sqlite"))
    return Profile(
        subject="reference",
        subject_id="a" * 64,
        task_id="a" * 64,
        target="cuda:sm_90",
        device="a <GPU>",
        level="system",
        status="profiled",
        system=summarize(trace, origin="nsys", is_reference=True),
        roofline=POINTS,
    )


def test_every_chart_is_one_svg_element_without_outside_references(tmp_path: Path) -> None:
    charts = dict(charts_of(profile_of(tmp_path), CEILINGS))
    assert list(charts) == ["One iteration", "Roofline", "Time by owner", "Gaps between kernels"]
    for text in charts.values():
        root = fromstring(text)
        assert root.tag == f"{SVG}svg"
        assert root.get("aria-label")
        assert "href" not in text
        for element in root.iter():
            assert not any(value == "nan" for value in element.attrib.values())


def test_the_timeline_has_a_span_for_each_kernel(tmp_path: Path) -> None:
    root = fromstring(dict(charts_of(profile_of(tmp_path)))["One iteration"])
    titles = [row.text or "" for row in root.iter(f"{SVG}title")]
    assert sum("sgemm_128x64: 4.00 us" in title for title in titles) == 10
    assert any(title.startswith("layer0 (Linear)") for title in titles)


def test_the_roofline_places_what_is_known_under_the_roofs() -> None:
    root = fromstring(draw_roofline(POINTS, CEILINGS))
    assert len(list(root.iter(f"{SVG}circle"))) == 2
    # A slope and a roof for each of two formats, and two axes.
    assert len(list(root.iter(f"{SVG}line"))) == 6
    assert draw_roofline((), CEILINGS) == ""
    assert len(list(fromstring(draw_roofline(POINTS, None)).iter(f"{SVG}line"))) == 2


def test_without_data_there_is_no_chart(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    assert profile.system is not None
    assert draw_gaps(profile.system.model_copy(update={"gaps": ()})) == ""
    bare = profile.model_copy(update={"system": None, "roofline": ()})
    assert charts_of(bare) == ()


def test_the_page_escapes_what_others_named(tmp_path: Path) -> None:
    page = charts_page(profile_of(tmp_path), CEILINGS)
    assert "a &lt;GPU&gt;" in page
    assert "<evil>" not in page
    assert page.count("<svg") == 4
