"""Rings of outputs on the GPU that a program under the clock writes to: owned, poisoned and read here.

The program's process maps them, too, and may go on writing: what counts is the copy that is taken.
"""

import torch

from stitch_tools.protocol import memory
from stitch_tools.protocol.serving import Handler, Reply, Request
from stitch_tools.worker.cuda_driver import DriverError
from stitch_tools.worker.reference.output_memory import poison
from stitch_tools.worker.tensors import create_on_device, map_pack, write_pack


class Rings:
    """All rings of this server, by number."""

    def __init__(self) -> None:
        self._slots: dict[int, list[list[torch.Tensor]]] = {}
        self._count = 0

    def handlers(self) -> dict[str, Handler]:
        """Handlers by operation."""
        return {
            "open_ring": self._open,
            "poison_ring": self._poison,
            "read_ring": self._read,
            "close_ring": self._close,
        }

    def _open(self, request: Request) -> Reply:
        """Poisoned memory for all slots; no descriptor where the GPU gives none."""
        specs = [(name, shape, None, dtype) for name, shape, dtype in request.message["outputs"]]
        layout, nbytes = memory.lay_out(specs * int(request.message["slots"]))
        try:
            fd = create_on_device(nbytes)
            tensors = map_pack(fd, layout)
        except DriverError as error:
            return Reply({"refused": str(error)})
        self._count += 1
        step = max(1, len(specs))
        self._slots[self._count] = [tensors[first : first + step] for first in range(0, len(tensors), step)]
        self._wipe(self._slots[self._count])
        return Reply({"ring": self._count}, fds=(fd,))

    def _poison(self, request: Request) -> Reply:
        slots, first = self._slots[request.message["ring"]], int(request.message["slot"])
        count = int(request.message["count"])
        self._wipe([slots[(first + offset) % len(slots)] for offset in range(min(count, len(slots)))])
        return Reply()

    def _read(self, request: Request) -> Reply:
        """One slot's outputs, in a pack in memory of the host."""
        tensors = self._slots[request.message["ring"]][int(request.message["slot"])]
        fd, manifest = write_pack([(str(index), tensor) for index, tensor in enumerate(tensors)])
        return Reply({"manifest": manifest}, fds=(fd,))

    def _close(self, request: Request) -> Reply:
        self._slots.pop(request.message["ring"], None)
        return Reply()

    def _wipe(self, slots: list[list[torch.Tensor]]) -> None:
        for tensors in slots:
            for tensor in tensors:
                poison(tensor)
        torch.cuda.synchronize()
