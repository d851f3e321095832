"""The outputs' pack on a device: one allocation of the same layout, with what lies beside outputs.

Outputs in allocations of their own have nothing behind them that belongs to the judge: what is written there
lands in memory of nobody, or of a neighbour. Here guards lie between them, and come back with them.
"""

import os
from collections.abc import Sequence

import torch

from stitch_tools.protocol.memory import PackEntry
from stitch_tools.worker.plain_calls import copy_plainly
from stitch_tools.worker.tensors import map_whole, view_of


class DevicePack:
    """A copy of a pack on a device."""

    def __init__(self, fd: int, device: str) -> None:
        """Copy what the pack holds now: poison, guards and buffers.

        Args:
            fd: the pack, in memory of the host; it is written to when outputs come back.
            device: where the program writes.
        """
        self._host = map_whole(fd, os.fstat(fd).st_size)
        self._device = self._host.to(device, copy=True)

    def views(self, entries: Sequence[PackEntry]) -> list[torch.Tensor]:
        """The tensors of some entries, in the device's copy."""
        return [view_of(self._device, entry) for entry in entries]

    def copy_in(self) -> None:
        """Bring what the pack holds now to the device."""
        self._device.copy_(self._host)

    def copy_back(self) -> None:
        """Bring outputs, and what lies beside them, into the pack."""
        copy_plainly([self._host], [self._device])
