"""Weights of order 1 in place of whatever a constructor gives: equal wherever the generator state is equal.

Default weights hide what a program leaves out: a bias of zeros, a norm's weight of ones, a LayerScale of
1e-6. While this mode is active, every new trainable parameter is filled with values that depend on the secret
state, the parameter's shape and how many of that shape came before; initialisers that run later fill it alike
again. What a constructor computes from other parameters (copies, packed or scaled weights) stays as computed.
"""

import contextlib
import hashlib
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch
from torch.overrides import TorchFunctionMode

from stitch_tools.protocol.messages_reference import Scale
from stitch_tools.worker.trees import tensors_in

# Buffers that are weights in eval mode, and that start as zeros and ones.
_STATISTICS = ("running_mean", "running_var")

_OVERWRITING = ("uniform_", "normal_", "zero_", "fill_", "copy_", "exponential_", "bernoulli_", "random_")


@dataclass
class _Filled:
    """A parameter that holds values of ours. The tensor keeps its storage from being used again."""

    tensor: torch.Tensor
    values: torch.Tensor


class OrderOne(TorchFunctionMode):
    """Fills parameters while a constructor runs; enter it by `order_one_weights`."""

    def __init__(self, state: bytes, scale: Scale) -> None:
        super().__init__()
        self._key, self._scale = hashlib.sha256(state).digest(), scale
        self._made: dict[str, int] = {}
        self._filled: dict[int, _Filled] = {}
        self._derived: dict[int, torch.Tensor] = {}
        self._copies: dict[int, torch.Tensor] = {}

    @property
    def count(self) -> int:
        """How many parameters hold values of ours."""
        return len(self._filled)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's values are ours, or computed from ours."""
        return _key(tensor) in self._filled or _key(tensor) in self._derived

    def adopt(self, tensor: torch.Tensor, statistic: str = "") -> None:
        """Fill a new parameter (or running statistic), unless it was computed from others."""
        key = _key(tensor)
        if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta or key in self._filled:
            return
        if key in self._derived:
            self._copies[key] = tensor
            return
        self._fill(tensor, statistic)

    def _fill(self, tensor: torch.Tensor, statistic: str = "") -> None:
        values = self._values(tuple(tensor.shape), statistic)
        self._filled[_key(tensor)] = _Filled(tensor, values)
        self._derived.pop(_key(tensor), None)
        _write(tensor, values)

    def _values(self, shape: tuple[int, ...], statistic: str) -> torch.Tensor:
        kind = f"{statistic}{shape}"
        number = self._made.get(kind, 0)
        self._made[kind] = number + 1
        # By shape and count, not by name: a program may call its parameters what it likes.
        digest = hashlib.sha256(self._key + f"{kind}{number}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        if len(shape) >= 2 and shape[0] > 1 and not statistic:
            # He's scaling keeps activations of order 1 through layers of any width.
            fan_in = math.prod(shape[1:])
            # In place: a weight can be larger than all caches by far.
            return torch.randn(shape, generator=generator).mul_(self._scale.gain * math.sqrt(2 / fan_in))
        magnitude = 0.5 + torch.rand(shape, generator=generator)
        if self._scale.positive or statistic == "running_var":
            return magnitude
        return magnitude * (torch.randint(0, 2, shape, generator=generator) * 2 - 1)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        tensors = tensors_in((args, kwargs))
        if not tensors:
            return out
        name = getattr(func, "__name__", "")
        # Methods that write end with one underscore, as initialisers do; the written tensor is the first one.
        writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        written = tensors[0] if writes else None
        known = any(self.holds(tensor) for tensor in tensors if tensor is not written)
        if written is not None:
            overwrites = name in _OVERWRITING or getattr(func, "__module__", "") == "torch.nn.init"
            self._after_write(written, known, overwrites=overwrites)
        elif known:
            for leaf in tensors_in(out):
                if _key(leaf) not in self._filled:
                    self._derived[_key(leaf)] = leaf
        return out

    def _after_write(self, written: torch.Tensor, from_known: bool, *, overwrites: bool) -> None:
        key = _key(written)
        if from_known:
            self._filled.pop(key, None)
            self._derived[key] = written
            return
        filled, copied = self._filled.get(key), self._copies.get(key)
        # A write to a part (an embedding's padding row) says something about the model: it stays.
        if filled is not None and written.numel() == filled.tensor.numel():
            _write(filled.tensor, filled.values)
        elif copied is not None and overwrites and written.numel() == copied.numel():
            del self._copies[key]
            self._fill(copied)


@contextlib.contextmanager
def order_one_weights(state: bytes, scale: Scale) -> Generator[OrderOne]:
    """The mode under which modules get weights of order 1, from the generator state that they start from."""
    parameter, module = torch.nn.Parameter, torch.nn.Module
    make, register = parameter.__new__, module.register_buffer
    mode = OrderOne(state, scale)

    def patched_make(
        cls: type[torch.nn.Parameter], data: torch.Tensor | None = None, requires_grad: bool = True
    ) -> torch.nn.Parameter:
        made = make(cls, data, requires_grad)
        if requires_grad and cls is parameter:
            mode.adopt(made.detach())
        return made

    def patched_register(
        self: torch.nn.Module, name: str, tensor: torch.Tensor | None, persistent: bool = True
    ) -> None:
        register(self, name, tensor, persistent)
        if name in _STATISTICS and isinstance(tensor, torch.Tensor):
            mode.adopt(tensor, name)

    parameter.__new__ = patched_make
    module.register_buffer = patched_register
    try:
        with mode:
            yield mode
    finally:
        parameter.__new__ = make
        module.register_buffer = register


def _write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.detach().copy_(values)


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
