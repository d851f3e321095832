"""Rings of outputs on the GPU that a program under the clock writes to: owned, poisoned and read here.

The program's process maps them, too, and may go on writing: what counts is the copy that is taken.
"""

import torch

from stitch_tools.protocol import memory
from stitch_tools.protocol.messages import Done, Fd
from stitch_tools.protocol.messages_reference import (
    CloseRing,
    OpenRing,
    PoisonRing,
    ReadRing,
    RingOpened,
    SlotRead,
)
from stitch_tools.protocol.serving import Handlers, on
from stitch_tools.worker.cuda_driver import DriverError
from stitch_tools.worker.reference.output_memory import poison
from stitch_tools.worker.tensors import create_on_device, map_pack, write_pack


class Rings:
    """All rings of this server, by number."""

    def __init__(self) -> None:
        self._slots: dict[int, list[list[torch.Tensor]]] = {}
        self._count = 0

    def handlers(self) -> Handlers:
        """Handlers by operation."""
        return {
            **on(OpenRing, self._open),
            **on(PoisonRing, self._poison),
            **on(ReadRing, self._read),
            **on(CloseRing, self._close),
        }

    def _open(self, message: OpenRing) -> RingOpened:
        specs = [(name, shape, None, dtype) for name, shape, dtype in message.outputs]
        layout, nbytes = memory.lay_out(specs * message.slots)
        try:
            fd = create_on_device(nbytes)
            tensors = map_pack(fd, layout)
        except DriverError as error:
            return RingOpened(0, str(error), ())
        self._count += 1
        step = max(1, len(specs))
        self._slots[self._count] = [tensors[first : first + step] for first in range(0, len(tensors), step)]
        self._wipe(self._slots[self._count])
        return RingOpened(self._count, None, (Fd(fd),))

    def _poison(self, message: PoisonRing) -> Done:
        slots = self._slots[message.ring]
        count = min(message.count, len(slots))
        self._wipe([slots[(message.slot + offset) % len(slots)] for offset in range(count)])
        return Done()

    def _read(self, message: ReadRing) -> SlotRead:
        tensors = self._slots[message.ring][message.slot]
        fd, manifest = write_pack([(str(index), tensor) for index, tensor in enumerate(tensors)])
        return SlotRead(manifest, Fd(fd))

    def _close(self, message: CloseRing) -> Done:
        self._slots.pop(message.ring, None)
        return Done()

    def _wipe(self, slots: list[list[torch.Tensor]]) -> None:
        for tensors in slots:
            for tensor in tensors:
                poison(tensor)
        torch.cuda.synchronize()
