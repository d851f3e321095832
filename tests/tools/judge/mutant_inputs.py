"""Weights and inputs for the search that tells a mutant from its original; nothing of the judge is used.

All values are finite: what a program does with NaN or infinity as an input is not asked.
"""

import math
from collections.abc import Callable, Iterator
from types import ModuleType

import torch

Tensors = list[torch.Tensor]
Changes = dict[str, Callable[[torch.Tensor], torch.Tensor]]

SIZES = (None, 1, 2, 3, 17)
"""Leading sizes beside one more, and twice as many and one, than the task's own; None: its own."""
_REPEATS = 3
_SHIFTS = 96
_PEAK = 1000.0
_LARGEST = 1e6
_TELLING = (0.0, 1.0, -1.0, 0.5, 88.0, -88.0, 100.0, -100.0, _PEAK, -_PEAK, 1e-4)


def weights(source: ModuleType) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Parameters and buffers: as initialised, of order 1, large, positive, and of many magnitudes.

    Once where there are none.
    """
    makers: tuple[Callable[[torch.Tensor], torch.Tensor] | None, ...] = (
        None,
        lambda x: torch.randn(x.shape),
        lambda x: 30 * torch.randn(x.shape),
        lambda x: 0.5 + torch.rand(x.shape),
        lambda x: torch.randn(x.shape) * 10 ** (6 * torch.rand(x.shape) - 3),
    )
    for maker in makers:
        model = source.Model(*source.get_init_inputs())
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        if maker is not None and not state:
            return
        with torch.no_grad():
            for name, value in state.items():
                if maker is not None and value.is_floating_point():
                    made = maker(value)
                    # A variance has no sign.
                    value.copy_(made.abs() if name.endswith("running_var") else made)
        yield [(name, value.detach()) for name, value in state.items()]


def inputs(source: ModuleType) -> Iterator[tuple[str, Tensors]]:
    """Random and structured inputs of the task's own leading size and of others, with what they are."""
    own = len(source.get_inputs()[0])
    for size in (*SIZES, own + 1, 2 * own + 1):
        for name, change in CHANGES.items():
            for _ in range(4 * _REPEATS if name == "random" and size is None else _REPEATS):
                given = [resized(change(x), x, size) for x in source.get_inputs()]
                yield f"{name} ({size or 'own'})", given
    columns = source.get_inputs()[0].shape[-1]
    step = 1 if columns <= _SHIFTS else _rows(source.get_inputs()[0])
    for first in range(0, columns, step):
        for peak in (_PEAK, -_PEAK):
            yield "a peak in every column", [_peaks_from(x, first, peak) for x in source.get_inputs()]


def perturbed(source: ModuleType, given: Tensors) -> Tensors:
    """The inputs after one or two random changes; now and then of another leading size, or fresh ones."""
    if _chance(0.05):
        return source.get_inputs()
    if _chance(0.05):
        size = int(torch.randint(1, 2 * len(given[0]) + 2, ()))
        return [resized(x, x, size) for x in given]
    step = _pick(STEPS)
    if _chance(0.5):
        return [_kept(step(x), x) for x in given]
    other = _pick(STEPS)
    return [_kept(other(step(x.clone())), x) for x in given]


def resized(x: torch.Tensor, like: torch.Tensor, size: int | None) -> torch.Tensor:
    """`x` with another leading size, and its dimensions in memory in the order of `like`."""
    if size is not None:
        x = x[torch.arange(size) % len(x)]
    order = sorted(range(x.dim()), key=lambda dim: -like.stride(dim))
    back = [order.index(dim) for dim in range(x.dim())]
    return x.permute(order).contiguous().permute(back)


def _kept(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return resized(x.clamp(-_LARGEST, _LARGEST), like, None)


def _chance(share: float) -> bool:
    return float(torch.rand(())) < share


def _pick(rows: tuple[Callable[[torch.Tensor], torch.Tensor], ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    return rows[int(torch.randint(len(rows), ()))]


def _rows(x: torch.Tensor) -> int:
    return max(1, x.numel() // x.shape[-1])


def _peaks_from(x: torch.Tensor, first: int, peak: float) -> torch.Tensor:
    """A peak in each row: in the column `first`, in the next one, and so on."""
    places = (torch.arange(_rows(x)) + first) % x.shape[-1]
    return resized(x.contiguous().scatter(-1, places.reshape(*x.shape[:-1], 1), peak), x, None)


def _one_peak(x: torch.Tensor) -> torch.Tensor:
    changed = x.contiguous().clone()
    changed.view(-1)[int(torch.randint(x.numel(), ()))] = 100.0
    return changed


def _sparse(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.rand(x.shape) < 0.02, 100 * torch.randn(x.shape), 1e-3 * x)


def _ramp(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape) / x.numel()


def _one_hot(x: torch.Tensor) -> torch.Tensor:
    return torch.eye(x.shape[-1], dtype=x.dtype)[torch.randint(x.shape[-1], x.shape[:-1])]


def _alternating(x: torch.Tensor) -> torch.Tensor:
    signs = 1 - 2 * (torch.arange(x.numel()) % 2)
    return x.abs() * signs.reshape(x.shape)


CHANGES: Changes = {
    "random": lambda x: x,
    "signed": torch.randn_like,
    "negated": torch.neg,
    "large": lambda x: x * 40,
    "huge": lambda x: x * 3000,
    "towering": lambda x: x * (_LARGEST / 4),
    "tiny": lambda x: x * 1e-3,
    "zeros": torch.zeros_like,
    "constant": lambda x: torch.full_like(x, 1.75),
    "constant rows": lambda x: x[..., :1].expand_as(x),
    "equal rows": lambda x: x[:1].expand_as(x),
    "one peak": _one_peak,
    "sparse": _sparse,
    "ascending": _ramp,
    "descending": lambda x: -_ramp(x),
    "sorted rows": lambda x: x.sort(-1).values,
    "alternating": _alternating,
    "ties": lambda x: x.round(),
    "near-constant": lambda x: 1 + torch.randn_like(x) * 2**-9,
    "of all magnitudes": lambda x: x * 2 ** (30 * torch.rand_like(x) - 20),
    "one-hot rows": _one_hot,
}


def _some_told(x: torch.Tensor) -> torch.Tensor:
    changed = x.contiguous().clone()
    places = torch.randint(x.numel(), (int(torch.randint(1, 9, ())),))
    changed.view(-1)[places] = _TELLING[int(torch.randint(len(_TELLING), ()))]
    return changed


def _row_told(x: torch.Tensor) -> torch.Tensor:
    changed = x.contiguous().clone().reshape(_rows(x), -1)
    changed[int(torch.randint(len(changed), ()))] = _TELLING[int(torch.randint(len(_TELLING), ()))]
    return changed.reshape(x.shape)


def _row_copied(x: torch.Tensor) -> torch.Tensor:
    changed = x.contiguous().clone()
    first, second = torch.randint(len(x), (2,)).tolist()
    changed[first] = changed[second]
    return changed


def _rolled(x: torch.Tensor) -> torch.Tensor:
    dim = int(torch.randint(x.dim(), ()))
    return x.roll(int(torch.randint(1, x.shape[dim] + 1, ())), dim)


def _block_scaled(x: torch.Tensor) -> torch.Tensor:
    changed = x.contiguous().clone()
    flat = changed.view(-1)
    first, last = sorted(torch.randint(x.numel() + 1, (2,)).tolist())
    flat[first:last] *= 2.0 ** float(torch.randint(-4, 7, ()))
    return changed


STEPS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    _some_told,
    _some_told,
    _row_told,
    _row_copied,
    _rolled,
    _block_scaled,
    lambda x: x * 2.0 ** float(torch.randint(-3, 4, ())),
    lambda x: -x,
    lambda x: x + math.exp(-float(torch.randint(0, 9, ()))) * torch.randn(x.shape),
    lambda x: torch.where(torch.rand(x.shape) < 0.1, -x, x),
)
"""What the climb from one input to the next may do."""
