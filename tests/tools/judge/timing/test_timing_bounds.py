"""The shortest possible times follow from ceilings, ring and caches, and never convict too early."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.judge.timing.probes.impossible_speed import (
    MARGIN,
    batch_times,
    impossible_speed,
    memory_nodes,
    unavoidable_bytes,
)
from stitch_tools.models.conditions import TimingDoubt
from stitch_tools.models.graph import Ceilings
from stitch_tools.models.verdict import Bench

MEGABYTE = 10**6
CEILINGS = Ceilings(
    device="a CPU",
    target="cpu",
    copy_bytes_per_s=10e9,
    write_bytes_per_s=8e9,
    last_level_cache_bytes=20 * MEGABYTE,
    flops_per_s={"fp32": 1e12},
    launch_us=1.0,
)
SLOTS, CACHES = 100, 30 * MEGABYTE


def doubt(
    history: list[tuple[int, float]], ceilings: Ceilings = CEILINGS, nodes: int = 1
) -> TimingDoubt | None:
    return impossible_speed(ceilings, history, output_bytes=MEGABYTE, slots=SLOTS, caches=CACHES, nodes=nodes)


def bound_us(history: list[tuple[int, float]], ceilings: Ceilings = CEILINGS, nodes: int = 1) -> float:
    row = doubt(history, ceilings, nodes)
    assert row is not None
    return row.expected


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


def test_a_program_at_the_speed_of_memory_is_within_its_bound() -> None:
    # Every byte that is written, at the fastest rate that was measured.
    assert doubt(history(MEGABYTE / 10e9)) is None


def test_a_program_that_writes_nothing_beats_the_bound_of_its_outputs() -> None:
    row = doubt(history(0.1e-6))
    assert row is not None
    assert (row.rule, row.severity, row.calls) == ("faster_than_memory", "suspicious", 500)
    assert row.expected == pytest.approx(5 * 70 * MEGABYTE / (MARGIN * 10e9) * 1e6)
    assert row.observed == pytest.approx(50.0)


def test_several_memory_nodes_widen_the_bound() -> None:
    one, two = (bound_us(history(1e-6), nodes=nodes) for nodes in (1, 2))
    assert one == pytest.approx(2 * two)


def test_memory_nodes_are_counted_and_none_told_is_one(tmp_path: Path) -> None:
    assert memory_nodes(tmp_path / "absent") == 1
    for name in ("node0", "node1", "online"):
        (tmp_path / name).mkdir()
    assert memory_nodes(tmp_path) == 2


def test_ceilings_without_a_rate_of_writing_say_nothing() -> None:
    older = CEILINGS.model_copy(update={"write_bytes_per_s": None})
    assert doubt(history(1e-6), older) is None


def test_calls_that_caches_could_hold_back_give_no_bound() -> None:
    assert doubt(history(1e-6, calls=10)) is None


def test_a_few_calls_give_no_bound() -> None:
    assert doubt(history(1e-6, batches=9)) is None


def test_one_odd_batch_does_not_decide() -> None:
    assert doubt([*history(MEGABYTE / 10e9), (500, 1e-9)]) is None


def test_an_empty_batch_is_taken_off_every_batch() -> None:
    assert batch_times([(0, 2e-6), (0, 5e-6), *[(7, 9e-6)] * 10]) == {7: pytest.approx(7e-6)}


def test_a_gpu_starts_one_kernel_at_least() -> None:
    gpu = CEILINGS.model_copy(update={"target": "cuda:sm_90", "launch_us": 3.0})
    with_launch, without = (bound_us(history(1e-6), row) for row in (gpu, CEILINGS))
    assert with_launch == pytest.approx(without + 3.0)


def test_benches_of_earlier_versions_that_hold_bounds_are_read() -> None:
    row = {"kind": "operations", "calls": 5, "amount": 1.0, "per_s": 1.0, "bound_us": 2.0, "measured_us": 1.0}
    data = {"program_id": "p", "task_id": "t", "outcome": "faster", "bounds": [row]}
    assert Bench.model_validate(data) == Bench(program_id="p", task_id="t", outcome="faster")
