"""Renew the inputs of a ring between timed calls, and fetch outputs."""

from collections.abc import Callable, Sequence

import torch

from stitch_tools.protocol.layout import untouched_byte
from stitch_tools.protocol.ring_messages import COLLECT, COLLECT_LATEST, RENEW, donor_of, parts, stretch
from stitch_tools.worker.plain_calls import wait_for_device
from stitch_tools.worker.tensors import dtype_name
from stitch_tools.worker.trees import raw_values

Row = Sequence[torch.Tensor]


def mix(targets: Row, donor: Row, token: int) -> None:
    """Give each floating tensor one stretch of the donor's, chosen by the token."""
    for index, (target, value) in enumerate(zip(targets, donor, strict=True)):
        if target.is_floating_point() and target.numel():
            raw = raw_values(target.data)
            begin, end = stretch(token, index, raw.numel())
            raw[begin:end].copy_(raw_values(value)[begin:end])


class Between:
    """Serves the controller's requests between batches of one loop."""

    def __init__(
        self,
        inputs: Sequence[Row],
        draws: Sequence[Row],
        *,
        outputs: Sequence[Row] = (),
        collect: Callable[[int], object] | None = None,
        cuda: bool = False,
    ) -> None:
        """Slot i of `inputs` holds a copy of draw i modulo their number.

        Args:
            inputs: of every slot.
            draws: what slots hold copies of, and stretches come from.
            outputs: of every slot, where the program is given memory for them: a stretch of it is wiped.
            collect: brings the outputs of a slot into the controller's memory.
            cuda: whether all of this lies on a GPU, which is waited for.
        """
        self._inputs, self._draws, self._outputs = inputs, draws, outputs
        self._collect, self._cuda = collect, cuda
        self._tokens: dict[int, int] = {}

    def serve(self, word: int, slot: int) -> None:
        """Do what the word asks for; the next call takes `slot`.

        Raises:
            ValueError: nobody asks for that.
        """
        kind, payload = parts(word)
        if kind == RENEW:
            self._renew(slot, payload)
        elif kind == COLLECT and self._collect is not None and payload < len(self._inputs):
            self._collect(payload)
        elif kind == COLLECT_LATEST and self._collect is not None and payload <= len(self._inputs):
            for back in range(1, payload + 1):
                self._collect((slot - back) % len(self._inputs))
        else:
            raise ValueError(f"an unknown request between calls: {word:#x}")
        if self._cuda:
            wait_for_device()

    def _renew(self, slot: int, token: int) -> None:
        row, own = self._inputs[slot], self._draws[slot % len(self._draws)]
        old = self._tokens.pop(slot, 0)
        if old:
            mix(row, own, old)
        if token:
            mix(row, self._draws[donor_of(slot, token, len(self._draws))], token)
            self._tokens[slot] = token
        for index, tensor in enumerate(self._outputs[slot] if self._outputs else ()):
            _wipe(tensor, token, index)


def _wipe(output: torch.Tensor, token: int, index: int) -> None:
    """Make a stretch of a dense output what no program computes."""
    if not output.numel():
        return
    raw = output.reshape(-1).view(torch.uint8)
    begin, end = stretch(token, index, raw.numel())
    raw[begin:end].fill_(untouched_byte(dtype_name(output.dtype)))
