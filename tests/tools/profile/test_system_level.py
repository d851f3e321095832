"""The figures of the system level, from recordings whose truth is known."""

from pathlib import Path

import pytest

from stitch_tools.models.profile import SystemProfile
from stitch_tools.profile.recorded_trace import read_trace
from stitch_tools.profile.system import NoIterationError, NoKernelsError, calibration_us, summarize
from tests.tools.profile_support import RecordingBuilder, host_bound_recording


def summed(path: Path, **facts: object) -> SystemProfile:
    given = {"origin": "nsys", "is_reference": True, **facts}
    return summarize(read_trace(path), **given)  # pyright: ignore[reportArgumentType]


def test_busy_idle_and_launches_of_a_host_bound_iteration(tmp_path: Path) -> None:
    system = summed(host_bound_recording(tmp_path / "r.sqlite"), untraced_us=180.0)
    assert system.iterations == 3
    assert system.wall_us == pytest.approx(220.0)
    assert system.busy_us == pytest.approx(20 * 4.0)
    assert system.busy_share == pytest.approx(80.0 / 220.0)
    # The driver's call inside of the runtime's is no second launch.
    assert system.launches == 20
    assert system.device_activities == 20
    # 19 gaps of 6 us between kernels of 4 us that begin every 10 us.
    assert system.idle_us == pytest.approx(19 * 6.0)
    assert system.host_between_launches_us == pytest.approx(7.0)
    assert [(row.up_to_us, row.count) for row in system.gaps if row.count] == [(10.0, 19.0)]
    assert system.untraced_us == 180.0


def test_the_runners_own_wait_is_no_wait_of_the_forward(tmp_path: Path) -> None:
    assert summed(host_bound_recording(tmp_path / "r.sqlite")).syncs == ()
    builder = RecordingBuilder(tmp_path / "s.sqlite")
    builder.iteration(0, 100, 90)
    builder.kernel("own_kernel(float*)", 1, 5, 10)
    builder.call("cudaStreamSynchronize_v3020", 20, 30)
    builder.call("cudaMalloc_v3020", 40, 65)
    system = summed(builder.finish())
    assert [(row.name, row.count, row.total_us) for row in system.syncs] == [
        ("cudaStreamSynchronize", 1.0, 10.0)
    ]
    assert [(row.name, row.total_us) for row in system.memory_calls] == [("cudaMalloc", 25.0)]


def test_kernels_that_overlap_are_busy_once(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "r.sqlite")
    builder.iteration(0, 100)
    builder.kernel("a", 1, 10, 20)
    builder.kernel("b", 5, 20, 20)
    system = summed(builder.finish())
    assert system.busy_us == pytest.approx(30.0)
    assert sum(row.total_us for row in system.kernels) == pytest.approx(40.0)


def test_transfers_are_added_up_with_their_pageable_share(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "r.sqlite")
    builder.iteration(0, 100)
    builder.copy(1, 10, 5, 3000, 0, 2)
    builder.copy(1, 20, 5, 1000, 1, 2)
    builder.kernel("a", 30, 40, 10)
    (row,) = summed(builder.finish()).transfers
    assert (row.direction, row.count, row.bytes, row.total_us) == ("host_to_device", 2, 4000, 10.0)
    assert row.pageable_share == pytest.approx(0.75)


def test_kernels_get_the_module_and_operator_that_launched_them(tmp_path: Path) -> None:
    system = summed(host_bound_recording(tmp_path / "r.sqlite"))
    products = next(row for row in system.kernels if row.name == "sgemm_128x64")
    assert (products.module, products.op, products.owner) == ("layer1", "aten::addmm", "vendor")
    pointwise = next(row for row in system.kernels if row.owner == "pytorch")
    assert pointwise.module == "layer0"
    modules = {row.path: row for row in system.modules}
    assert modules["layer0"].calls == 10
    assert modules["layer0"].device_us == pytest.approx(40.0)
    assert modules["layer1"].type == "Linear"
    assert modules["layer1"].launches == 10


def test_a_programs_own_kernels_are_its_own(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "r.sqlite")
    builder.iteration(0, 100)
    builder.kernel("(anonymous namespace)::fused_kernel(float const*, float*)", 1, 5, 30)
    builder.kernel("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>(T1::Params)", 10, 40, 10)
    system = summed(builder.finish(), own=("fused_kernel",), is_reference=False)
    assert [row.owner for row in system.kernels] == ["own", "vendor"]
    assert system.owner_us("own") == pytest.approx(30.0)


def test_the_calibration_is_the_mean_of_its_kernels(tmp_path: Path) -> None:
    assert calibration_us(read_trace(host_bound_recording(tmp_path / "r.sqlite"))) == pytest.approx(1.2)


def test_a_recording_without_an_iteration_or_kernels_says_so(tmp_path: Path) -> None:
    empty = RecordingBuilder(tmp_path / "e.sqlite")
    empty.kernel("a", 1, 5, 10)
    with pytest.raises(NoIterationError):
        summed(empty.finish())
    idle = RecordingBuilder(tmp_path / "i.sqlite")
    idle.iteration(0, 100)
    with pytest.raises(NoKernelsError):
        summed(idle.finish())


def test_the_timeline_holds_the_longest_spans_of_one_iteration(tmp_path: Path) -> None:
    system = summed(host_bound_recording(tmp_path / "r.sqlite", kernels=3000, iterations=2))
    assert 0 < len(system.timeline) <= 1500
    assert {span.lane for span in system.timeline} >= {"device", "launch", "module"}
    assert max(span.start_us + span.duration_us for span in system.timeline) <= system.wall_us + 1.0
