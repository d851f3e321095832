"""The shortest possible times follow from ceilings, ring and caches, and never convict too early."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.judge.timing.bounds import (
    MARGIN,
    batch_times,
    finding_of,
    memory_nodes,
    unavoidable_bytes,
    writing_bound,
)
from stitch_tools.models import Ceilings, TimeBound

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


def bound(
    history: list[tuple[int, float]], ceilings: Ceilings = CEILINGS, nodes: int = 1, caches: int = CACHES
) -> TimeBound | None:
    return writing_bound(ceilings, history, output_bytes=MEGABYTE, slots=SLOTS, caches=caches, nodes=nodes)


def known_bound(
    history: list[tuple[int, float]], ceilings: Ceilings = CEILINGS, nodes: int = 1, caches: int = CACHES
) -> TimeBound:
    row = bound(history, ceilings, nodes, caches)
    assert row is not None
    return row


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
    assert not known_bound(history(MEGABYTE / 10e9)).beaten


def test_a_program_that_writes_nothing_beats_the_bound_of_its_outputs() -> None:
    row = known_bound(history(0.1e-6))
    assert row.beaten
    assert row.bound_us == pytest.approx(5 * 70 * MEGABYTE / (MARGIN * 10e9) * 1e6)
    assert row.measured_us == pytest.approx(50.0)
    finding = finding_of(row)
    assert (finding.rule, finding.severity) == ("faster_than_memory", "suspicious")


def test_caches_that_the_system_does_not_tell_count_as_when_ceilings_were_measured() -> None:
    assert known_bound(history(1e-6), caches=0).amount == 5 * 80 * MEGABYTE


def test_several_memory_nodes_widen_the_bound() -> None:
    one, two = (known_bound(history(1e-6), nodes=nodes) for nodes in (1, 2))
    assert one.bound_us == pytest.approx(2 * two.bound_us)


def test_memory_nodes_are_counted_and_none_told_is_one(tmp_path: Path) -> None:
    assert memory_nodes(tmp_path / "absent") == 1
    for name in ("node0", "node1", "online"):
        (tmp_path / name).mkdir()
    assert memory_nodes(tmp_path) == 2


def test_ceilings_without_a_rate_of_writing_say_nothing() -> None:
    older = CEILINGS.model_copy(update={"write_bytes_per_s": None})
    assert bound(history(1e-6), older) is None


def test_calls_that_caches_could_hold_back_give_no_bound() -> None:
    assert bound(history(1e-6, calls=10)) is None


def test_a_few_calls_give_no_bound() -> None:
    assert bound(history(1e-6, batches=9)) is None


def test_one_odd_batch_does_not_decide() -> None:
    assert not known_bound([*history(MEGABYTE / 10e9), (500, 1e-9)]).beaten


def test_an_empty_batch_is_taken_off_every_batch() -> None:
    assert batch_times([(0, 2e-6), (0, 5e-6), *[(7, 9e-6)] * 10]) == {7: pytest.approx(7e-6)}


def test_a_gpu_starts_one_kernel_at_least() -> None:
    gpu = CEILINGS.model_copy(update={"target": "cuda:sm_90", "launch_us": 3.0})
    with_launch, without = (known_bound(history(1e-6), row) for row in (gpu, CEILINGS))
    assert with_launch.bound_us == pytest.approx(without.bound_us + 3.0)


def test_bounds_of_inputs_and_operations_of_earlier_versions_are_read() -> None:
    for kind in ("inputs and outputs", "operations"):
        row = {"kind": kind, "calls": 5, "amount": 1.0, "per_s": 1.0, "bound_us": 2.0, "measured_us": 1.0}
        assert TimeBound.model_validate(row).beaten
