"""The shortest possible times follow from ceilings, ring and caches, and never convict too early."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.judge.timing.bounds import (
    MARGIN,
    TimeBounds,
    batch_times,
    distinct_bytes,
    findings_of,
    memory_nodes,
    product_operations,
    unavoidable_bytes,
)
from stitch_tools.models import Ceilings, Graph, GraphNode, ReferenceFacts, TensorSpec

MEGABYTE = 10**6
CEILINGS = Ceilings(
    device="a CPU",
    device_key="key",
    target="cpu",
    copy_bytes_per_s=10e9,
    write_bytes_per_s=8e9,
    read_bytes_per_s=12e9,
    last_level_cache_bytes=20 * MEGABYTE,
    flops_per_s={"fp32": 1e12},
    pointwise_flops_per_s=2e12,
    launch_us=1.0,
)
SLOTS, CACHES = 100, 30 * MEGABYTE
X = TensorSpec(name="0", shape=(250_000,), dtype="float32")
FACTS = ReferenceFacts(inputs=(X,), outputs=(X,), output_structure='"leaf"', parameters=())


def bounds(ceilings: Ceilings = CEILINGS, nodes: int = 1) -> TimeBounds:
    return TimeBounds(ceilings, FACTS, slots=SLOTS, caches=CACHES, nodes=nodes)


def history(per_call_s: float, calls: int = 500, batches: int = 12) -> list[tuple[int, float]]:
    return [row for _ in range(batches) for row in ((0, 20e-6), (calls, 20e-6 + calls * per_call_s))]


def test_each_pass_over_the_ring_moves_all_but_one_filling_of_the_caches() -> None:
    assert unavoidable_bytes(MEGABYTE, 100, SLOTS, CACHES) == 70 * MEGABYTE
    assert unavoidable_bytes(MEGABYTE, 250, SLOTS, CACHES) == (70 + 70 + 20) * MEGABYTE
    assert unavoidable_bytes(MEGABYTE, 10, SLOTS, CACHES) == 0


@given(
    per_call=st.integers(0, 10**7),
    calls=st.integers(0, 3000),
    slots=st.integers(2, 500),
    caches=st.integers(0, 10**9),
)
def test_no_cache_makes_more_unavoidable_than_is_moved(
    per_call: int, calls: int, slots: int, caches: int
) -> None:
    moved = unavoidable_bytes(per_call, calls, slots, caches)
    assert 0 <= moved <= per_call * calls
    assert moved <= unavoidable_bytes(per_call, calls, slots, 0) == per_call * calls
    assert unavoidable_bytes(per_call, calls, slots, per_call * slots) == 0
    # A cache that keeps the same lines for ever saves them in each pass, and no less is claimed here.
    kept = min(caches, per_call * slots)
    assert moved <= max(0, per_call * calls - kept * (calls // slots))


def test_a_program_at_the_speed_of_memory_is_within_its_bounds() -> None:
    # Every byte that is written, at the fastest rate that was measured.
    rows = bounds().of("program", history(MEGABYTE / 10e9))
    assert [row.kind for row in rows] == ["outputs", "inputs and outputs"]
    assert not any(row.beaten for row in rows if row.kind == "outputs")
    assert findings_of(rows[:1]) == ()


def test_a_program_that_writes_nothing_beats_the_bound_of_its_outputs() -> None:
    (outputs, both) = bounds().of("program", history(0.1e-6))
    assert outputs.beaten
    assert outputs.bound_us == pytest.approx(5 * 70 * MEGABYTE / (MARGIN * 10e9) * 1e6)
    assert outputs.measured_us == pytest.approx(50.0)
    assert both.beaten
    first, second = findings_of((outputs, both))
    assert (first.rule, first.severity) == ("faster_than_memory", "suspicious")
    assert (second.rule, second.severity) == ("inputs_not_read", "suspicious")


def test_reading_a_part_of_the_inputs_is_never_more_than_suspicious() -> None:
    rows = bounds().of("program", history(MEGABYTE / 9e9))
    (finding,) = findings_of(rows)
    assert (finding.rule, finding.severity) == ("inputs_not_read", "suspicious")


def test_caches_that_the_system_does_not_tell_count_as_when_ceilings_were_measured() -> None:
    silent = TimeBounds(CEILINGS, FACTS, slots=SLOTS, caches=0)
    (outputs, _) = silent.of("program", history(1e-6))
    assert outputs.amount == 5 * 80 * MEGABYTE


def test_several_memory_nodes_widen_the_bound() -> None:
    (one, _), (two, _) = (bounds(nodes=nodes).of("program", history(1e-6)) for nodes in (1, 2))
    assert one.bound_us == pytest.approx(2 * two.bound_us)


def test_memory_nodes_are_counted_and_none_told_is_one(tmp_path: Path) -> None:
    assert memory_nodes(tmp_path / "absent") == 1
    for name in ("node0", "node1", "online"):
        (tmp_path / name).mkdir()
    assert memory_nodes(tmp_path) == 2


def test_ceilings_without_a_rate_of_writing_say_nothing_of_outputs() -> None:
    older = CEILINGS.model_copy(update={"write_bytes_per_s": None, "read_bytes_per_s": None})
    assert [row.kind for row in bounds(older).of("program", history(1e-6))] == ["inputs and outputs"]


def test_gos_that_caches_could_hold_back_give_no_bound() -> None:
    assert bounds().of("program", history(1e-6, calls=10)) == ()


def test_a_few_gos_give_no_bound() -> None:
    assert bounds().of("program", history(1e-6, batches=9)) == ()


def test_one_odd_batch_does_not_decide() -> None:
    rows = [*history(MEGABYTE / 10e9), (500, 1e-9)]
    assert not bounds().of("program", rows)[0].beaten


def test_an_empty_batch_is_taken_off_every_batch() -> None:
    assert batch_times([(0, 2e-6), (0, 5e-6), *[(7, 9e-6)] * 10]) == {7: pytest.approx(7e-6)}


def test_a_gpu_starts_one_kernel_at_least() -> None:
    gpu = CEILINGS.model_copy(update={"target": "cuda:sm_90", "launch_us": 3.0})
    (with_launch, _), (without, _) = (bounds(row).of("program", history(1e-6)) for row in (gpu, CEILINGS))
    assert with_launch.bound_us == pytest.approx(without.bound_us + 3.0)


def test_an_expanded_input_has_the_bytes_of_its_memory() -> None:
    row = TensorSpec(name="0", shape=(8, 1000), dtype="float32", stride=(0, 1))
    assert distinct_bytes([row]) == 4000
    assert distinct_bytes([row.model_copy(update={"stride": None})]) == 32000
    assert distinct_bytes([row.model_copy(update={"shape": (0, 1000)})]) == 0


def test_products_are_counted_at_the_fastest_format_and_convolutions_not_at_all() -> None:
    nodes = (
        GraphNode(name="a", op="aten.linear.default", outputs=(X,), flops=10**9),
        GraphNode(name="b", op="aten.convolution.default", outputs=(X,), flops=10**12),
    )
    operations = product_operations(Graph(source="export", nodes=nodes))
    assert operations == 10**9
    row = bounds().of("program", history(100e-6), operations)[-1]
    assert row.kind == "operations"
    assert row.bound_us == pytest.approx(500 * 10**9 / (MARGIN * 2e12) * 1e6)
    (finding,) = findings_of((row,))
    assert (finding.rule, finding.severity) == ("fewer_operations", "suspicious")
