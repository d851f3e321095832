"""The generators that user code may draw from: seeded, photographed, put back.

Weights, inputs and random numbers drawn in forward come from three unrelated seeds of the controller's.
"""

import pickle
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class GeneratorState:
    """State of torch's generators, Python's and (where it is loaded) numpy's."""

    cpu: torch.Tensor
    cuda: torch.Tensor | None
    python: bytes
    numpy: bytes | None

    def same_as(self, other: "GeneratorState") -> bool:
        """Whether nothing was drawn between the two."""
        cuda = self.cuda is None or other.cuda is None or torch.equal(self.cuda, other.cuda)
        numpy = self.numpy is None or other.numpy is None or self.numpy == other.numpy
        return torch.equal(self.cpu, other.cpu) and cuda and numpy and self.python == other.python


def seed_generators(seed: int) -> None:
    """Seed every generator that a reference is likely to draw from."""
    if torch.backends.cuda.is_built():
        torch.manual_seed(seed)
    else:
        # manual_seed would write down the stack of each call for devices that this torch cannot have: slow.
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def generator_state() -> GeneratorState:
    """The present state; CUDA's only where CUDA is in use already."""
    numpy = _numpy()
    return GeneratorState(
        cpu=torch.get_rng_state(),
        cuda=torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        python=pickle.dumps(random.getstate()),
        numpy=None if numpy is None else pickle.dumps(numpy.random.get_state()),
    )


def restore_generators(state: GeneratorState) -> None:
    """Put a state of this process back."""
    torch.set_rng_state(state.cpu)
    if state.cuda is not None:
        torch.cuda.set_rng_state(state.cuda)
    random.setstate(pickle.loads(state.python))
    numpy = _numpy()
    if numpy is not None and state.numpy is not None:
        numpy.random.set_state(pickle.loads(state.numpy))


def pack_torch_state() -> bytes:
    """Generator states of torch as bytes that another process may take over (never pickled)."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else torch.empty(0, dtype=torch.uint8)
    cpu = bytes(torch.get_rng_state().tolist())
    return len(cpu).to_bytes(4, "big") + cpu + bytes(cuda.tolist())


def unpack_torch_state(data: bytes) -> None:
    """Continue from a state that `pack_torch_state` gave in another process."""
    size = int.from_bytes(data[:4], "big")
    torch.set_rng_state(torch.tensor(list(data[4 : 4 + size]), dtype=torch.uint8))
    if len(data) > 4 + size:
        torch.cuda.set_rng_state(torch.tensor(list(data[4 + size :]), dtype=torch.uint8))


def _numpy() -> Any:
    return sys.modules.get("numpy")
