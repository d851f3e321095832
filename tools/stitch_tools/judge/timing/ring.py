"""How many distinct inputs and outputs timed calls rotate over, and where outputs lie in shared memory."""

import mmap
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stitch_tools.models.task import ReferenceFacts, TensorSpec
from stitch_tools.protocol import memory
from stitch_tools.protocol.layout import untouched_byte
from stitch_tools.protocol.memory import PackEntry

CACHE_FACTOR = 3
"""A ring of this many last-level caches leaves nothing of one slot in cache when its turn comes again."""
MAX_SLOTS = 16384
MAX_DRAWS = 8
"""Different values; further slots hold copies of them at other addresses."""


@dataclass(frozen=True)
class RingShape:
    """Size of the ring of every contestant."""

    slots: int
    draws: int
    nbytes: int
    """Inputs and outputs of all slots together."""


def ring_shape(
    facts: ReferenceFacts, *, cache_bytes: int, memory_bytes: int, max_slots: int = MAX_SLOTS
) -> RingShape:
    """As many slots as three last-level caches hold, at least 2, bounded by `memory_bytes` per process."""
    per_slot = max(1, sum(spec.nbytes for spec in (*facts.inputs, *facts.outputs)))
    wanted = -(-CACHE_FACTOR * cache_bytes // per_slot)
    slots = max(2, min(wanted, max_slots, memory_bytes // per_slot))
    return RingShape(slots, min(slots, MAX_DRAWS), slots * per_slot)


@dataclass(frozen=True)
class Sample:
    """One slot's outputs as bytes, taken right after the answer to a batch."""

    slot: int
    outputs: tuple[bytes, ...]
    token: int
    """Of what the slot's inputs were renewed with; 0: its own draw."""


class Ring(Protocol):
    """The outputs of all slots in memory that the program does not own."""

    slots: int
    fd: int
    settle_s: float
    """By how many seconds a batch may be longer after memory of the ring was poisoned or read."""

    @property
    def request(self) -> list[tuple[str, list[int], str]]:
        """Name, shape and type of one slot's outputs."""
        ...

    def poison(self, slot: int, count: int = 1) -> None:
        """Overwrite the outputs of `count` slots."""
        ...

    def take(self, slot: int) -> tuple[bytes, ...]:
        """A copy of one slot's outputs."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


@dataclass
class OutputRing:
    """The outputs of all slots in one shared memory that this process owns."""

    specs: Sequence[TensorSpec]
    slots: int
    settle_s: float = field(init=False, default=0.0)
    fd: int = field(init=False)
    layout: list[PackEntry] = field(init=False)
    _view: mmap.mmap = field(init=False)

    def __post_init__(self) -> None:
        rows = [(spec.name, spec.shape, None, spec.dtype) for spec in self.specs]
        self.layout, nbytes = memory.lay_out(rows * self.slots)
        self.fd = memory.create(nbytes)
        self._view = mmap.mmap(self.fd, nbytes)
        for slot in range(self.slots):
            self.poison(slot)

    @property
    def request(self) -> list[tuple[str, list[int], str]]:
        """Name, shape and type of one slot's outputs: from these both sides compute the same layout."""
        return [(spec.name, list(spec.shape), spec.dtype) for spec in self.specs]

    def poison(self, slot: int, count: int = 1) -> None:
        """Overwrite the outputs of `count` slots from `slot` on with what no program computes."""
        for entry in (row for offset in range(count) for row in self._entries((slot + offset) % self.slots)):
            filling = bytes([untouched_byte(entry["dtype"])]) * entry["nbytes"]
            self._view[entry["offset"] : entry["offset"] + entry["nbytes"]] = filling

    def take(self, slot: int) -> tuple[bytes, ...]:
        """A copy of one slot's outputs."""
        return tuple(
            self._view[entry["offset"] : entry["offset"] + entry["nbytes"]] for entry in self._entries(slot)
        )

    def close(self) -> None:
        """Give the memory back."""
        self._view.close()
        os.close(self.fd)

    def _entries(self, slot: int) -> list[PackEntry]:
        count = len(self.specs)
        return self.layout[slot * count : (slot + 1) * count]


class OutputSampler:
    """Takes outputs of the timed region itself: which slots, nobody outside this process can know.

    Where calls write straight into our memory (`live`), one slot of the last batch is poisoned before a
    visit; once the process is stopped after its answer, the slot's bytes are copied. Work that a program does
    after its answer is missing from them. Elsewhere the outputs of one call of a batch that nobody can
    foresee are fetched right after its answer.
    """

    def __init__(self, ring: Ring, *, limit: int, live: bool, reach: int | None = None) -> None:
        """Keep at most `limit` samples.

        `live`: outputs reach our memory with each call. `reach`: of how many latest calls outputs are there;
        None: of all.
        """
        self.ring = ring
        self._limit = limit
        self.live = live
        self._reach = reach
        self._random = random.SystemRandom()
        self._armed: int | None = None
        self._start = 0
        self._expected_calls = 0
        self._last_batch = 0
        self._batches = self._expected_batches = 0
        self._due: int | None = None
        self._seen = 0
        self.samples: list[Sample] = []

    def before_visit(self, slot: int) -> None:
        """The next call takes `slot`; choose one that the visit will end with, or one of its batches."""
        self._start, self._armed, self._due, self._batches = slot, None, None, 0
        if not self.live and self._expected_batches and self._limit:
            self._due = self._random.randrange(self._expected_batches)
        if self.live and self._expected_calls:
            back = self._random.randrange(max(1, min(self._last_batch, self._expected_calls)))
            self._armed = (slot + self._expected_calls - 1 - back) % self.ring.slots
            self.ring.poison(self._armed)

    def after_visit(self, calls: int, last_batch: int, tokens: Mapping[int, int]) -> None:
        """The visit made `calls` calls, `last_batch` of them in the last batch; the process is stopped.

        `tokens`: by slot, what inputs were renewed with.
        """
        self._expected_calls, self._last_batch, self._expected_batches = calls, last_batch, self._batches
        if self._armed is None or (self._armed - self._start) % self.ring.slots >= calls:
            return
        self.offer(self._armed, tokens.get(self._armed, 0))

    def after_batch(self, slot: int, calls: int) -> int | None:
        """The slot whose outputs are to be fetched now, where the next call takes `slot`; None: none."""
        if not calls:
            return None
        is_due = self._batches == self._due
        self._batches += 1
        return self.choose(slot, calls) if is_due else None

    def choose(self, slot: int, calls: int) -> int:
        """One of the latest `calls` calls' slots, where the next call takes `slot`."""
        back = self._random.randrange(max(1, min(calls, self.ring.slots, self._reach or calls)))
        return (slot - 1 - back) % self.ring.slots

    def take(self, slot: int, token: int = 0) -> None:
        """Keep a sample of this slot, however many there are."""
        self.samples.append(Sample(slot, self.ring.take(slot), token))

    def offer(self, slot: int, token: int) -> None:
        """Keep a sample of this slot, or not: each that was offered has the same chance."""
        sample = Sample(slot, self.ring.take(slot), token)
        self._seen += 1
        if len(self.samples) < self._limit:
            self.samples.append(sample)
        elif self._random.randrange(self._seen) < self._limit:
            self.samples[self._random.randrange(self._limit)] = sample
