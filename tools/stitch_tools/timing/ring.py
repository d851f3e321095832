"""How many distinct inputs and outputs timed calls rotate over, and where outputs lie in shared memory."""

import mmap
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stitch_tools.models import ReferenceFacts, TensorSpec
from stitch_tools.worker import memory
from stitch_tools.worker.memory import PackEntry

CACHE_FACTOR = 3
"""A ring of this many last-level caches leaves nothing of one slot in cache when its turn comes again."""
MAX_SLOTS = 16384
MAX_DRAWS = 8
"""Different values; further slots hold copies of them at other addresses."""
UNTOUCHED_INTEGER = 0xA5
_UNTOUCHED_FLOAT = 0xFF
_FLOATS = ("float", "bfloat", "complex")


@dataclass(frozen=True)
class RingShape:
    """Size of the ring of every contestant."""

    slots: int
    draws: int
    nbytes: int
    """Inputs and outputs of all slots together."""


def ring_shape(facts: ReferenceFacts, *, cache_bytes: int, memory_bytes: int) -> RingShape:
    """As many slots as three last-level caches hold, at least 2, bounded by `memory_bytes` per process."""
    per_slot = max(1, sum(spec.nbytes for spec in (*facts.inputs, *facts.outputs)))
    wanted = -(-CACHE_FACTOR * cache_bytes // per_slot)
    slots = max(2, min(wanted, MAX_SLOTS, memory_bytes // per_slot))
    return RingShape(slots, min(slots, MAX_DRAWS), slots * per_slot)


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that can be taken without pushing anything out."""
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """One slot's outputs as bytes, taken at "done"."""

    slot: int
    outputs: tuple[bytes, ...]


@dataclass
class OutputRing:
    """The outputs of all slots in one shared memory that this process owns."""

    specs: Sequence[TensorSpec]
    slots: int
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

    def poison(self, slot: int) -> None:
        """Overwrite one slot's outputs with what no program computes."""
        for entry in self._entries(slot):
            byte = _UNTOUCHED_FLOAT if entry["dtype"].startswith(_FLOATS) else UNTOUCHED_INTEGER
            self._view[entry["offset"] : entry["offset"] + entry["nbytes"]] = bytes([byte]) * entry["nbytes"]

    def take(self, slot: int) -> Sample:
        """A copy of one slot's outputs."""
        parts = (
            self._view[entry["offset"] : entry["offset"] + entry["nbytes"]] for entry in self._entries(slot)
        )
        return Sample(slot, tuple(parts))

    def close(self) -> None:
        """Give the memory back."""
        self._view.close()
        os.close(self.fd)

    def _entries(self, slot: int) -> list[PackEntry]:
        count = len(self.specs)
        return self.layout[slot * count : (slot + 1) * count]


class Sampler:
    """Takes outputs of the timed region itself: which slots, nobody outside this process can know.

    Before a visit one slot of its last go is poisoned; once the process stands still at "done", the slot's
    bytes are copied. Work that a program pushed behind its "done" is missing from them.
    """

    def __init__(self, ring: OutputRing, *, limit: int, live: bool) -> None:
        """Sample at most `limit` slots; `live`: outputs reach our memory during the visit, not at the end."""
        self._ring = ring
        self._limit = limit
        self._live = live
        self._random = random.SystemRandom()
        self._armed: int | None = None
        self._start = 0
        self._expected_calls = 0
        self._last_go = 0
        self._seen = 0
        self.samples: list[Sample] = []

    def before_visit(self, slot: int) -> None:
        """The next call takes `slot`; choose one of those that the visit will end with."""
        self._start, self._armed = slot, None
        if self._live and self._expected_calls:
            back = self._random.randrange(max(1, min(self._last_go, self._expected_calls)))
            self._armed = (slot + self._expected_calls - 1 - back) % self._ring.slots
            self._ring.poison(self._armed)

    def after_visit(self, calls: int, last_go: int) -> None:
        """The visit made `calls` calls, `last_go` of them in its last go; the process stands still."""
        self._expected_calls, self._last_go = calls, last_go
        if self._armed is None or (self._armed - self._start) % self._ring.slots >= calls:
            return
        self._seen += 1
        if len(self.samples) < self._limit:
            self.samples.append(self._ring.take(self._armed))
        elif self._random.randrange(self._seen) < self._limit:
            self.samples[self._random.randrange(self._limit)] = self._ring.take(self._armed)

    def at_end(self, executed: int) -> None:
        """The process ended its loop after `executed` calls; outputs that come late are taken now."""
        if self._live:
            return
        reached = min(executed, self._ring.slots)
        for slot in self._random.sample(range(reached), min(self._limit, reached)):
            self.samples.append(self._ring.take(slot))

    def wipe(self, slot: int, count: int) -> None:
        """Poison `count` slots from `slot` on."""
        for offset in range(count):
            self._ring.poison((slot + offset) % self._ring.slots)

    def take_one(self, slot: int, count: int) -> None:
        """Keep a sample of one of the `count` slots from `slot` on."""
        self.samples.append(self._ring.take((slot + self._random.randrange(count)) % self._ring.slots))

    @property
    def live(self) -> bool:
        """Whether outputs reach our memory with each call."""
        return self._live
