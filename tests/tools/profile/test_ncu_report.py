"""Pages of ncu: both layouts, units, and text that is no page."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.profile import ncu_metrics as m
from stitch_tools.profile.ncu_report import NcuKernel, parse_ncu
from stitch_tools.profile.source_lines import hot_lines
from tests.tools.profile.ncu_tables import HEALTHY, details_page, launch, raw_page

NAME = "void ns::scale<float, 4>(const T1 *, T1 *)"


@pytest.mark.parametrize("page", [raw_page, details_page])
def test_both_layouts_give_the_same_launches(
    page: Callable[[Sequence[NcuKernel]], str],
) -> None:
    kernels = parse_ncu(page([launch(name=NAME, blocks=12, threads=128), launch(name="other(int)")]))
    assert [kernel.name for kernel in kernels] == [NAME, "other(int)"]
    assert kernels[0].short_name == "scale"
    assert (kernels[0].blocks, kernels[0].threads, kernels[0].capability) == (12, 128, "9.0")
    assert kernels[0].metrics == pytest.approx(HEALTHY)
    assert kernels[0].duration_us == 100.0


def test_times_are_scaled_by_their_unit() -> None:
    kernel = parse_ncu(raw_page([launch({m.DURATION_NS: 12.5})], unit="us"))[0]
    assert kernel.duration_us == 12.5


def test_what_was_not_collected_has_no_value() -> None:
    kernels = parse_ncu(raw_page([launch(without=[m.SM]), launch()]))
    assert kernels[0].get(m.SM) is None
    assert kernels[1].get(m.SM) == 55.0


@given(st.text(max_size=300))
def test_any_text_is_survived(text: str) -> None:
    for body in (text, f'"ID","Kernel Name","x__y"\n{text}', f'"Kernel Name","k"\n"#","Source"\n{text}'):
        parse_ncu(body)
        hot_lines(body)


COLUMNS = (
    "#",
    "Source",
    "Warp Stall Sampling (All Samples)",
    "Instructions Executed",
    "Thread Instructions Executed",
    "L2 Theoretical Sectors Global Excessive",
    "L1 Wavefronts Shared Excessive",
)
SOURCE_PAGE = f"""==PROF== Connected
"Kernel Name","transpose(const float *, float *)"
"File Path","/scratch/source/program.cu"
"File Name","program.cu"
{",".join(COLUMNS)}
"8","  const int row = threadIdx.y;","12","100","3200","0","0"
"9","  out[row] = in[column];","1,188","100","800","14,680,064","0"
"Kernel Name","other(int)"
"File Path","/scratch/source/other.cuh"
"#","Source","# Samples","Instructions Executed"
"3","x += 1;","5","7"
"""


def test_each_figure_names_its_hottest_line() -> None:
    lines = hot_lines(SOURCE_PAGE)
    assert list(lines) == ["transpose(const float *, float *)", "other(int)"]
    mine = lines["transpose(const float *, float *)"]
    assert set(mine) == {"samples", "excess_sectors", "instructions", "idle_threads"}
    worst = mine["excess_sectors"]
    assert (worst.file, worst.number, worst.share) == ("/scratch/source/program.cu", 9, 1.0)
    assert mine["samples"].share == pytest.approx(0.99)
    assert mine["idle_threads"].number == 9
    assert lines["other(int)"]["samples"].file.endswith("other.cuh")
