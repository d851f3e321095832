"""What nsys recorded on one H200 says here, without a GPU: by the code that reads a fresh one."""

import gzip
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from stitch_tools.diagnose.diagnosis import diagnose
from stitch_tools.diagnose.evidence import ProfileEvidence
from stitch_tools.diagnose.graph_time import graph_time
from stitch_tools.models.graph import Ceilings, Graph, GraphInput
from stitch_tools.models.profile import SystemProfile
from stitch_tools.models.task import Contract, TensorSpec
from stitch_tools.profile.recorded_trace import RecordedTrace, read_trace
from stitch_tools.profile.system import calibration_us, summarize
from tests.tools.profile.strip_recording import strip, traces_of_a_machine
from tests.tools.profile_support import RecordingBuilder

RECORDED = Path(__file__).parent / "recorded"
FIXTURES = sorted(RECORDED.glob("*.nsys.sqlite.gz"))
FIRST = {
    "sync_in_loop": "sync_in_loop",
    "synchronous_copies": "transfer_heavy",
    "pageable_copies": "transfer_pageable",
}
"""The rule that names a planted fault."""
CEILINGS = Ceilings(
    device="NVIDIA H200",
    target="cuda:sm_90",
    copy_bytes_per_s=4.17e12,
    last_level_cache_bytes=62914560,
    flops_per_s={"fp32": 5.08e13, "tf32": 3.85e14},
    launch_us=0.967,
    node_us=1.121,
)
"""Measured in the same hour."""
HOST_BOUND_GRAPH_US, HOST_BOUND_LATENCY_US, HOST_BOUND_INPUT_BYTES = 601.7, 2633.4, 1204224
"""Of KernelBench's 9_ResNet18, with TF32 convolutions: one graph with its input copied in, and eager."""
GPU_BOUND_GRAPH_US = 829.5
"""Of 4_LeNet5, in the same way."""


def recorded(name: str, folder: Path) -> RecordedTrace:
    file = folder / f"{name}.sqlite"
    file.write_bytes(gzip.decompress((RECORDED / f"{name}.nsys.sqlite.gz").read_bytes()))
    return read_trace(file)


def host_bound(folder: Path) -> ProfileEvidence:
    trace = recorded("host_bound", folder)
    system = summarize(trace, origin="nsys", is_reference=True, untraced_us=HOST_BOUND_LATENCY_US)
    spec = TensorSpec(name="0", shape=(HOST_BOUND_INPUT_BYTES // 4,), dtype="float32")
    graph = Graph(source="export", inputs=(GraphInput(name="x", kind="user", spec=spec),))
    return ProfileEvidence(
        subject="reference",
        target="cuda:sm_90",
        system=system,
        contract=Contract(conv_precision="tf32"),
        graph=graph,
        ceilings=CEILINGS,
        calibration_us=calibration_us(trace),
    )


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.name.partition(".")[0])
def test_a_fixture_is_small_and_says_nothing_of_the_machine(fixture: Path) -> None:
    assert fixture.stat().st_size < 200_000
    assert traces_of_a_machine(fixture) == []


def test_what_tells_of_a_machine_is_left_out_and_would_be_found(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "r.sqlite")
    builder.iteration(0, 50)
    builder.kernel("step(float *)", 5, 10, 4)
    builder.call("/tmp/session/stream_stdout.log", 60, 61)
    whole = builder.finish()
    kept = tmp_path / "kept.gz"
    kept.write_bytes(gzip.compress(whole.read_bytes()))
    assert any("/tmp/session" in text for text in traces_of_a_machine(kept))
    # A string that no kept row names is not copied.
    with sqlite3.connect(whole) as tables:
        tables.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start > 55000000")
        tables.execute("INSERT INTO StringIds VALUES (900, 'HOME=/home/somebody')")
        (named,) = tables.execute("SELECT id FROM StringIds WHERE value LIKE '/tmp/%'").fetchone()
        tables.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE nameId = ?", (named,))
    tables.close()
    strip(whole, tmp_path / "stripped.gz")
    assert traces_of_a_machine(tmp_path / "stripped.gz") == []
    (tmp_path / "stripped.sqlite").write_bytes(gzip.decompress((tmp_path / "stripped.gz").read_bytes()))
    assert [row.name for row in read_trace(tmp_path / "stripped.sqlite").device] == ["step(float *)"]


@pytest.mark.parametrize(("name", "rule"), FIRST.items())
def test_a_planted_fault_is_the_first_finding(name: str, rule: str, tmp_path: Path) -> None:
    system = summarize(recorded(name, tmp_path), origin="nsys", is_reference=False)
    evidence = ProfileEvidence("program", "cuda:sm_90", system, Contract(), ceilings=CEILINGS)
    assert diagnose(evidence).bottlenecks[0].rule == rule
    # With a latency without a profiler, from which a graph's gain is predicted, too.
    untraced = system.model_copy(update={"untraced_us": 0.9 * system.wall_us})
    assert diagnose(replace(evidence, system=untraced)).bottlenecks[0].rule == rule


def test_a_host_bound_reference_is_called_so_and_its_graph_is_predicted(tmp_path: Path) -> None:
    evidence = host_bound(tmp_path)
    found = diagnose(evidence)
    assert found.bound_by == "host"
    assert found.bottlenecks[0].rule == "host_bound"
    predicted = graph_time(evidence)
    assert predicted is not None
    assert predicted.is_gap_measured
    assert predicted.expected_us == pytest.approx(HOST_BOUND_GRAPH_US, rel=0.10)
    assert predicted.low_us <= HOST_BOUND_GRAPH_US <= predicted.high_us
    naive = abs(predicted.naive_us / HOST_BOUND_GRAPH_US - 1.0)
    assert abs(predicted.expected_us / HOST_BOUND_GRAPH_US - 1.0) < naive
    # Modules and operators of the kernels come from the iteration that has ranges.
    system = evidence.system
    assert (system.launches, system.device_activities) == (134.0, 134.0)
    assert {row.op for row in system.kernels} >= {"aten::cudnn_convolution", "aten::cudnn_batch_norm"}
    assert sum(1 for row in system.modules if row.device_us) > 40


def test_a_reference_that_keeps_the_device_busy_is_not_called_host_bound() -> None:
    text = (RECORDED / "gpu_bound.system.json").read_text(encoding="utf-8")
    system = SystemProfile.model_validate_json(text)
    evidence = ProfileEvidence(
        subject="reference",
        target="cuda:sm_90",
        system=system,
        contract=Contract(conv_precision="tf32"),
        ceilings=CEILINGS,
        calibration_us=1.0,
    )
    found = diagnose(evidence)
    assert found.bound_by == "compute"
    assert found.bottlenecks[0].rule == "fp32_products"
    # A graph wins a few percent; 1.04 were measured.
    (graph,) = [row.gain for row in found.bottlenecks if row.rule == "host_bound"]
    assert graph.expected < 1.10
    predicted = graph_time(evidence)
    assert predicted is not None
    assert predicted.expected_us == pytest.approx(GPU_BOUND_GRAPH_US, rel=0.10)
