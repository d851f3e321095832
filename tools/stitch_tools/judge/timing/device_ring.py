"""A ring of outputs in memory of the GPU: the reference server owns it, and alone poisons and reads it."""

import os
from collections.abc import Sequence

from stitch_tools.models.task import TensorSpec
from stitch_tools.protocol.messages_reference import CloseRing, OpenRing, PoisonRing, ReadRing
from stitch_tools.run.reference_server import ReferenceServer

# By which a batch may be longer after another process has used the GPU.
_SWITCH_S = 3e-4


class DeviceRing:
    """As `OutputRing`, for programs on a GPU whose outputs two processes can map."""

    settle_s = _SWITCH_S

    def __init__(self, judge: ReferenceServer, specs: Sequence[TensorSpec], slots: int) -> None:
        """Made and poisoned.

        Raises:
            DeviceRingError: the GPU has no memory of this kind left.
        """
        self.slots = slots
        self.request = [(spec.name, list(spec.shape), spec.dtype) for spec in specs]
        self._judge = judge
        outputs = tuple((spec.name, tuple(spec.shape), spec.dtype) for spec in specs)
        opened = judge.call(OpenRing(outputs, slots))
        if opened.refused is not None:
            raise DeviceRingError(opened.refused)
        self.fd: int = opened.fds[0]
        self._number = opened.ring

    def poison(self, slot: int, count: int = 1) -> None:
        """Overwrite the outputs of `count` slots from `slot` on with what no program computes."""
        self._judge.call(PoisonRing(self._number, slot, count))

    def take(self, slot: int) -> tuple[bytes, ...]:
        """A copy of one slot's outputs."""
        read = self._judge.call(ReadRing(self._number, slot))
        try:
            return tuple(_read(read.fd, row["offset"], row["nbytes"]) for row in read.manifest)
        finally:
            os.close(read.fd)

    def close(self) -> None:
        """Give the memory back."""
        os.close(self.fd)
        # A server that is gone has given it back.
        if self._judge.child.is_alive():
            self._judge.call(CloseRing(self._number))


class DeviceRingError(Exception):
    """There is no such ring; the message says why."""


def _read(fd: int, offset: int, nbytes: int) -> bytes:
    """All of a tensor's bytes: one call of the system gives two gigabytes at most."""
    parts: list[bytes] = []
    while nbytes:
        parts.append(os.pread(fd, nbytes, offset))
        offset, nbytes = offset + len(parts[-1]), nbytes - len(parts[-1])
    return b"".join(parts)
