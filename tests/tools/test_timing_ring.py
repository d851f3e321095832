"""Rings: how long they are, and which outputs of the timed region are looked at."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.models import ReferenceFacts, TensorSpec
from stitch_tools.timing.ring import MAX_DRAWS, MAX_SLOTS, OutputRing, Sampler, available_bytes, ring_shape

MB = 1 << 20


def facts(input_floats: int, output_floats: int) -> ReferenceFacts:
    return ReferenceFacts(
        inputs=(TensorSpec(name="0", shape=(input_floats,), dtype="float32"),),
        outputs=(TensorSpec(name="0", shape=(output_floats,), dtype="float32"),),
        output_structure='"leaf"',
        parameters=(),
    )


@given(inputs=st.integers(0, 10**8), outputs=st.integers(0, 10**8), memory=st.integers(0, 10**10))
def test_a_ring_is_three_caches_long_unless_memory_or_count_forbid(
    inputs: int, outputs: int, memory: int
) -> None:
    shape = ring_shape(facts(inputs, outputs), cache_bytes=32 * MB, memory_bytes=memory)
    assert 2 <= shape.slots <= MAX_SLOTS
    assert 1 <= shape.draws <= min(MAX_DRAWS, shape.slots)
    bounded = shape.slots == MAX_SLOTS or shape.nbytes + 4 * (inputs + outputs) > memory
    assert shape.nbytes >= 96 * MB or bounded


def test_available_memory_is_known() -> None:
    assert available_bytes() > MB


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
    assert ring.take(4).outputs == (b"\xff" * 12, b"\xa5" * 16)
    assert ring.request == [("a", [3], "float32"), ("b", [2], "int64")]


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
        sampler = Sampler(ring, limit=2, live=True)
        sampler.before_visit(0)
        sampler.after_visit(calls, min(last, calls))
        assert sampler.samples == []
        sampler.before_visit(start)
        sampler.after_visit(calls, min(last, calls))
        (sample,) = sampler.samples
        assert (sample.slot - start) % 5 < calls
        assert sample.outputs == (b"\xff" * 4,)
    finally:
        ring.close()


def test_no_more_outputs_are_kept_than_asked_for(ring: OutputRing) -> None:
    sampler = Sampler(ring, limit=2, live=True)
    for _ in range(20):
        sampler.before_visit(0)
        sampler.after_visit(5, 5)
    assert len(sampler.samples) == 2


def test_outputs_that_come_late_are_taken_at_the_end(ring: OutputRing) -> None:
    sampler = Sampler(ring, limit=5, live=False)
    sampler.before_visit(0)
    sampler.after_visit(3, 3)
    assert sampler.samples == []
    sampler.at_end(3)
    assert {sample.slot for sample in sampler.samples} == {0, 1, 2}
