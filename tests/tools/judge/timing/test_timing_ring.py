"""Rings: how long they are, and which outputs of the timed region are looked at."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.judge.timing.ring import MAX_DRAWS, MAX_SLOTS, OutputRing, OutputSampler, ring_shape
from stitch_tools.models.task import ReferenceFacts, TensorSpec

MB = 1 << 20


def facts(input_floats: int, output_floats: int) -> ReferenceFacts:
    return ReferenceFacts(
        inputs=(TensorSpec(name="0", shape=(input_floats,), dtype="float32"),),
        outputs=(TensorSpec(name="0", shape=(output_floats,), dtype="float32"),),
        output_structure='"leaf"',
        parameters=(),
    )


def test_a_ring_is_no_longer_than_asked() -> None:
    assert ring_shape(facts(10, 10), cache_bytes=32 * MB, memory_bytes=10**9, max_slots=100).slots == 100


@given(inputs=st.integers(0, 10**8), outputs=st.integers(0, 10**8), memory=st.integers(0, 10**10))
def test_a_ring_is_three_caches_long_unless_memory_or_count_forbid(
    inputs: int, outputs: int, memory: int
) -> None:
    shape = ring_shape(facts(inputs, outputs), cache_bytes=32 * MB, memory_bytes=memory)
    assert 2 <= shape.slots <= MAX_SLOTS
    assert 1 <= shape.draws <= min(MAX_DRAWS, shape.slots)
    per_slot = max(1, 4 * (inputs + outputs))
    bounded = shape.slots == MAX_SLOTS or shape.nbytes + per_slot > memory
    assert shape.nbytes >= 96 * MB or bounded


@pytest.fixture
def ring() -> Iterator[OutputRing]:
    specs = [
        TensorSpec(name="a", shape=(3,), dtype="float32"),
        TensorSpec(name="b", shape=(2,), dtype="int64"),
    ]
    ring = OutputRing(specs, 5)
    yield ring
    ring.close()


def test_outputs_nobody_wrote_hold_what_nobody_computes(ring: OutputRing) -> None:
    assert ring.take(4) == (b"\xff" * 12, b"\xa5" * 16)
    assert ring.request == [("a", [3], "float32"), ("b", [2], "int64")]


def test_slots_are_poisoned_around_the_rings_end_and_no_others(ring: OutputRing) -> None:
    os.pwrite(ring.fd, bytes(os.fstat(ring.fd).st_size), 0)
    ring.poison(4, 2)
    poisoned = [slot for slot in range(5) if ring.take(slot) == (b"\xff" * 12, b"\xa5" * 16)]
    assert poisoned == [0, 4]


def test_outputs_of_a_slot_lie_apart_and_aligned(ring: OutputRing) -> None:
    offsets = [entry["offset"] for entry in ring.layout]
    assert len(set(offsets)) == 10
    assert all(offset % 256 == 0 for offset in offsets)


@given(calls=st.integers(1, 30), start=st.integers(0, 4), last=st.integers(1, 30))
def test_a_sampled_slot_is_poisoned_before_and_was_run_in_the_visit(
    calls: int, start: int, last: int
) -> None:
    ring = OutputRing([TensorSpec(name="a", shape=(1,), dtype="float32")], 5)
    try:
        sampler = OutputSampler(ring, limit=2, live=True)
        sampler.before_visit(0)
        sampler.after_visit(calls, min(last, calls), tokens={})
        assert sampler.samples == []
        sampler.before_visit(start)
        sampler.after_visit(calls, min(last, calls), tokens={})
        (sample,) = sampler.samples
        assert (sample.slot - start) % 5 < calls
        assert sample.outputs == (b"\xff" * 4,)
    finally:
        ring.close()


def test_a_sample_says_what_its_inputs_were_renewed_with(ring: OutputRing) -> None:
    sampler = OutputSampler(ring, limit=2, live=True)
    sampler.after_visit(5, 5, tokens={})
    sampler.before_visit(0)
    sampler.after_visit(5, 5, dict.fromkeys(range(5), 8))
    assert [sample.token for sample in sampler.samples] == [8]


def test_no_more_outputs_are_kept_than_asked_for(ring: OutputRing) -> None:
    sampler = OutputSampler(ring, limit=2, live=True)
    for _ in range(20):
        sampler.before_visit(0)
        sampler.after_visit(5, 5, tokens={})
    assert len(sampler.samples) == 2


def visit(sampler: OutputSampler, batches: list[int], slots: int) -> list[tuple[int, int]]:
    """(next slot, slot to fetch) of each batch of a visit after which outputs were fetched."""
    fetched: list[tuple[int, int]] = []
    slot = 0
    sampler.before_visit(slot)
    for calls in batches:
        slot = (slot + calls) % slots
        chosen = sampler.after_batch(slot, calls)
        if chosen is not None:
            sampler.offer(chosen, token=7)
            fetched.append((slot, chosen))
    sampler.after_visit(sum(batches), batches[-1], tokens={})
    return fetched


def test_where_outputs_must_be_fetched_one_call_of_a_visit_is_chosen_that_nobody_can_foresee(
    ring: OutputRing,
) -> None:
    sampler = OutputSampler(ring, limit=400, live=False)
    batches = [2, 0, 1, 0, 1, 4]
    assert visit(sampler, batches, 5) == []
    # The rarest is chosen every sixteenth time.
    found = [visit(sampler, batches, 5) for _ in range(400)]
    assert all(len(row) == 1 for row in found)
    assert {row[0] for row in found} == {(2, 1), (2, 0), (3, 2), (4, 3), (3, 2), (3, 1), (3, 0), (3, 4)}
    assert {sample.token for sample in sampler.samples} == {7}


def test_where_outputs_are_static_memory_only_those_of_the_latest_call_are_fetched(ring: OutputRing) -> None:
    sampler = OutputSampler(ring, limit=1, live=False, reach=1)
    found = [visit(sampler, [3, 4], 5) for _ in range(30)][1:]
    assert all((after - before) % 5 == 1 for ((after, before),) in found)
    assert len(sampler.samples) == 1


def test_an_output_is_kept_on_demand_however_many_there_are(ring: OutputRing) -> None:
    sampler = OutputSampler(ring, limit=0, live=False)
    sampler.take(3, token=9)
    assert [(sample.slot, sample.token) for sample in sampler.samples] == [(3, 9)]
