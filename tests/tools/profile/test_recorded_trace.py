"""Recordings of nsys are read with what other versions leave out, and damaged ones are refused."""

import gzip
import sqlite3
from pathlib import Path

import pytest

from stitch_tools.profile.host_ranges import read_named
from stitch_tools.profile.recorded_trace import DamagedTraceError, read_trace
from stitch_tools.profile.system import NoKernelsError, summarize
from tests.tools.profile.strip_recording import traces_of_a_machine
from tests.tools.profile_support import RecordingBuilder, host_bound_recording


def test_kernels_calls_and_ranges_are_read_with_their_names(tmp_path: Path) -> None:
    trace = read_trace(host_bound_recording(tmp_path / "r.sqlite", kernels=4, iterations=2))
    assert len(trace.named("stitch:iteration")) == 2
    # Two iterations and the named one, of four kernels each, and ten of the calibration.
    assert len(trace.device) == 2 * 4 + 4 + 10
    kernel = next(row for row in trace.device if row.name == "sgemm_128x64")
    assert (kernel.grid, kernel.block, kernel.registers, kernel.shared_bytes) == (
        (64, 1, 1),
        (256, 1, 1),
        32,
        1024,
    )
    assert {row.name for row in trace.host} == {"cudaLaunchKernel", "cuLaunchKernel", "cudaDeviceSynchronize"}
    # A range whose text lies among the strings.
    assert trace.named("aten::linear, op_id = 3")


def test_marks_and_open_ranges_are_no_ranges(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "r.sqlite")
    builder.mark("stitch:iteration", 5)
    builder.range("stitch:call", 1, 2)
    assert [row.text for row in read_trace(builder.finish()).ranges] == ["stitch:call"]


def test_copies_say_direction_and_whether_the_host_memory_is_pageable(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "r.sqlite")
    builder.copy(1, 10, 5, 4096, 0, 2)
    builder.copy(2, 30, 5, 1024, 2, 1)
    builder.copy(8, 50, 5, 1024, 2, 2)
    rows = read_trace(builder.finish()).device
    assert [(row.direction, row.pageable, row.bytes) for row in rows] == [
        ("host_to_device", True, 4096),
        ("device_to_host", False, 1024),
        ("device_to_device", None, 1024),
    ]


def test_a_version_without_a_column_leaves_it_unknown(tmp_path: Path) -> None:
    path = host_bound_recording(tmp_path / "r.sqlite", kernels=2, iterations=1)
    with sqlite3.connect(path) as tables:
        tables.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN graphNodeId")
        tables.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN registersPerThread")
    tables.close()
    kernel = next(row for row in read_trace(path).device if row.name == "sgemm_128x64")
    assert kernel.registers is None
    assert kernel.grid == (64, 1, 1)


def test_a_recording_that_was_cut_off_is_damaged(tmp_path: Path) -> None:
    whole = host_bound_recording(tmp_path / "r.sqlite", kernels=200).read_bytes()
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedTraceError):
        read_trace(cut)


def test_what_is_no_recording_is_damaged(tmp_path: Path) -> None:
    text = tmp_path / "text.sqlite"
    text.write_text("this is no database, whatever its name says" * 100, encoding="utf-8")
    with pytest.raises(DamagedTraceError):
        read_trace(text)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as tables:
        tables.execute("CREATE TABLE people (name TEXT)")
    tables.close()
    with pytest.raises(DamagedTraceError, match="StringIds"):
        read_trace(other)


def test_a_damaged_value_is_a_damaged_recording(tmp_path: Path) -> None:
    path = host_bound_recording(tmp_path / "r.sqlite", kernels=2)
    with sqlite3.connect(path) as tables:
        tables.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = 'soon'")
    tables.close()
    with pytest.raises(DamagedTraceError):
        read_trace(path)


def test_a_recording_of_an_older_nsys_is_read(tmp_path: Path) -> None:
    """By nsys 2022.4.2, of a program without a GPU: ranges, a mark, and empty tables of what a GPU does."""
    fixture = Path(__file__).parent / "recorded" / "ranges.nsys2022.sqlite.gz"
    assert traces_of_a_machine(fixture) == []
    path = tmp_path / "r.sqlite"
    path.write_bytes(gzip.decompress(fixture.read_bytes()))
    trace = read_trace(path)
    assert [len(trace.named(text)) for text in ("stitch:iteration", "stitch:call", "a mark")] == [3, 3, 0]
    named = read_named(trace)
    assert [(call.name, call.module) for call in named.calls] == [("aten::linear", "fc"), ("aten::relu", "")]
    assert named.modules["fc"].type == "Linear"
    with pytest.raises(NoKernelsError):
        summarize(trace, origin="nsys", is_reference=True)
