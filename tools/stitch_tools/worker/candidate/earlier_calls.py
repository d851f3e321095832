"""Inputs and outputs of earlier calls, which belong to the caller: whether a later call writes to them.

A program may keep their memory, as the static memory of a graph does, and replay into it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from stitch_tools.worker.plain_calls import copy_plainly
from stitch_tools.worker.trees import fresh_copy, raw_values

# Copies of larger ones would take memory and time that the program may need.
_MOST_BYTES = 256 << 20
_CALLS = 3
# Taken before a program is loaded, which may exchange it.
_equal: Callable[[torch.Tensor, torch.Tensor], bool] = torch.equal


@dataclass(frozen=True)
class _Kept:
    name: str
    tensor: torch.Tensor
    copy: torch.Tensor

    @property
    def is_changed(self) -> bool:
        return not _equal(_bytes(self.tensor), _bytes(self.copy))


@dataclass(frozen=True)
class _Call:
    inputs: tuple[_Kept, ...]
    outputs: tuple[_Kept, ...]


class EarlierCalls:
    """The last calls' inputs and outputs, as they were when each call returned."""

    def __init__(self) -> None:
        self._calls: deque[_Call] = deque(maxlen=_CALLS)
        self.changed_inputs: tuple[str, ...] = ()
        """Inputs of earlier calls that the last call wrote to."""
        self.changed_outputs: tuple[str, ...] = ()
        """Outputs of earlier calls that the last call wrote to."""

    def look(self, inputs: Sequence[torch.Tensor]) -> None:
        """See after a call on `inputs` what became of the earlier ones; each is watched until it has changed.

        Memory of these inputs is the judge's to change: it put other values there.
        """
        own = {_storage(tensor) for tensor in inputs}
        calls = [_Call(_elsewhere(row.inputs, own), _elsewhere(row.outputs, own)) for row in self._calls]
        self.changed_inputs = _changed([kept for row in calls for kept in row.inputs])
        self.changed_outputs = _changed([kept for row in calls for kept in row.outputs])
        still = [_Call(_unchanged(row.inputs), _unchanged(row.outputs)) for row in calls]
        self._calls = deque(still, maxlen=_CALLS)

    def keep(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Remember a call that has returned. Outputs in the inputs' memory are inputs."""
        own = {_storage(tensor) for tensor in inputs}
        outputs = [tensor for tensor in outputs if _storage(tensor) not in own]
        if sum(tensor.nbytes for tensor in (*inputs, *outputs)) <= _MOST_BYTES:
            self._calls.append(_Call(_copied(inputs), _copied(outputs)))

    def forget(self) -> None:
        """Watch none of them any more."""
        self._calls.clear()
        self.changed_inputs = self.changed_outputs = ()


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # By bits: a NaN is the same NaN.
    return raw_values(tensor.detach()).view(torch.uint8)


def _copied(tensors: Sequence[torch.Tensor]) -> tuple[_Kept, ...]:
    copies = [fresh_copy(tensor.detach()) for tensor in tensors]
    # All that lies between, as it does not matter which elements of an expanded tensor are one.
    copy_plainly([raw_values(copy) for copy in copies], [raw_values(tensor.detach()) for tensor in tensors])
    rows = enumerate(zip(tensors, copies, strict=True))
    return tuple(_Kept(str(index), tensor, copy) for index, (tensor, copy) in rows)


def _elsewhere(rows: Sequence[_Kept], own: set[int]) -> tuple[_Kept, ...]:
    return tuple(row for row in rows if _storage(row.tensor) not in own)


def _unchanged(rows: Sequence[_Kept]) -> tuple[_Kept, ...]:
    return tuple(row for row in rows if not row.is_changed)


def _changed(rows: Sequence[_Kept]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.name for row in rows if row.is_changed))
