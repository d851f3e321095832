"""What holds in every draw of a task's input maker, and is kept where a check changes the values.

A program may rely on it: a product with a triangular matrix reads half of it, a kernel over block tables
reads where they point. What two draws of random values could have by chance is not looked for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from stitch_tools.worker.trees import computable

_FEWEST = 8
"""Elements below which a structure may be chance."""
_ZERO_SHARE = 0.05
_CLOSE = 1e-3
_FEWEST_IN_ORDER = 5
_INDEX_TYPES = (torch.int32, torch.int64)
ASCENDING = "ascending numbers"
"""Why offsets and the like are left alone."""
MARKED = "numbers with a negative mark"
"""Why tables whose unused places hold -1 are left alone."""


class StructureLostError(Exception):
    """Values cannot be given the structure of an input."""


@dataclass(frozen=True)
class InputStructure:
    """Of one input."""

    zeros: torch.Tensor | None = None
    """Cells that are zero in each draw, where they are many but not all."""
    symmetric: bool = False
    """The last two axes."""
    ascending: bool = False
    """Along the last axis; of floats."""
    norm: int = 0
    """2 where each last-axis row has length one, 1 where each is a distribution, else 0."""
    left_alone: str = ""
    """Why its values are only ever the maker's own; "" where others may be made."""

    def keep(self, own: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """`values` with this structure; `own` where only the maker's are right.

        Raises:
            StructureLostError: these values cannot have it.
        """
        if self.left_alone:
            return own
        if self.norm == 1:
            values = values.abs()
        if self.zeros is not None and self.zeros.shape == values.shape:
            values = values.masked_fill(self.zeros.to(values.device), 0.0)
        if self.symmetric:
            values = values.tril() + values.tril(-1).mT
        if self.ascending:
            values = values.sort(dim=-1).values
        if self.norm:
            lengths = values.double().norm(p=self.norm, dim=-1, keepdim=True)
            values = (values / lengths).to(values.dtype)
        if not self._holds(values):
            raise StructureLostError(
                f"the values cannot be what every draw of the maker is: {self.describe()}"
            )
        return values

    def _holds(self, values: torch.Tensor) -> bool:
        """What one step gave, another may have taken."""
        return (
            (
                self.zeros is None
                or (self.zeros.shape == values.shape and not bool(values[self.zeros.to(values.device)].any()))
            )
            and (not self.symmetric or _is_symmetric(values))
            and (not self.ascending or _ascends(values))
            and (not self.norm or _has_norm(values, self.norm))
        )

    @property
    def square(self) -> bool:
        """Whether it is lost with another leading size."""
        return self.symmetric or self.zeros is not None

    def describe(self) -> str:
        """In words; "" where nothing was found."""
        words = [self.left_alone] if self.left_alone else []
        words += ["zero in the same places"] * (self.zeros is not None)
        words += ["symmetric"] * self.symmetric + ["ascending"] * self.ascending
        words += {0: [], 1: ["rows that sum to one"], 2: ["rows of length one"]}[self.norm]
        return ", ".join(words)


def find_structure(draws: Sequence[Sequence[torch.Tensor]]) -> tuple[InputStructure, ...]:
    """What holds for each input in all draws of the task's maker."""
    rows = ([computable(tensor) for tensor in draw] for draw in draws)
    columns = list(zip(*rows, strict=True))
    same = [len({(tensor.shape, tensor.dtype) for tensor in column}) == 1 for column in columns]
    found = [
        _structure_of(column) if known else InputStructure()
        for column, known in zip(columns, same, strict=True)
    ]
    # Lengths beside a table with marks, indices beside offsets: what they say together is not known.
    if any(row.left_alone in (ASCENDING, MARKED) for row in found):
        beside = InputStructure(left_alone=f"whole numbers beside {ASCENDING} or {MARKED}")
        found = [
            beside if not row.left_alone and _are_indices(column) else row
            for row, column in zip(found, columns, strict=True)
        ]
    return tuple(found)


def _structure_of(column: Sequence[torch.Tensor]) -> InputStructure:
    first = column[0]
    if _is_discrete(first) and first.numel() and not _all(column, _is_mask):
        return InputStructure(left_alone=_kind_of_numbers(column))
    if first.is_complex() or first.numel() < _FEWEST:
        return InputStructure()
    if _all(column, _is_mask):
        return InputStructure(left_alone=_kind_of_mask(column))
    if first.dim() < 1 or not _all(column, lambda tensor: bool(tensor.isfinite().all())):
        return InputStructure()
    column = [tensor.float() for tensor in column]
    if not _all(column, _varies):
        return InputStructure()
    return InputStructure(
        zeros=_common_zeros(column),
        symmetric=_all(column, _is_symmetric),
        ascending=first.shape[-1] >= _FEWEST and _all(column, _ascends),
        norm=next((p for p in (2, 1) if _all(column, lambda tensor, p=p: _has_norm(tensor, p))), 0),
    )


def _kind_of_mask(column: Sequence[torch.Tensor]) -> str:
    """Masks that are all one value, or random, may be turned over: who ignores them is found out."""
    if not _all(column, _varies):
        return ""
    if column[0].dim() and column[0].shape[-1] > 1 and _all(column, _is_one_hot):
        return "one-hot rows"
    if _all(column, _is_triangular):
        return "a triangular mask"
    if column[0].dim() and column[0].shape[-1] > 1 and _all(column, _descends):
        return "a mask of lengths"
    return ""


def _kind_of_numbers(column: Sequence[torch.Tensor]) -> str:
    first = column[0]
    if not _are_indices(column):
        return ""
    if first.dim() and first.shape[-1] >= _FEWEST_IN_ORDER and _all(column, _rises):
        return ASCENDING
    below = [tensor[tensor < 0] for tensor in column]
    return MARKED if any(marks.numel() and not _varies(marks) for marks in below) else ""


def _common_zeros(column: Sequence[torch.Tensor]) -> torch.Tensor | None:
    zeros = column[0] == 0
    share = float(zeros.float().mean())
    if not _ZERO_SHARE < share < 1.0:
        return None
    # Zeros that a random mask or a rectifier made lie elsewhere in the next draw.
    return zeros if all(torch.equal(zeros, tensor == 0) for tensor in column[1:]) else None


def _all(column: Sequence[torch.Tensor], holds: Callable[[torch.Tensor], bool]) -> bool:
    return all(holds(tensor) for tensor in column)


def _are_indices(column: Sequence[torch.Tensor]) -> bool:
    return column[0].dtype in _INDEX_TYPES and not _all(column, _is_mask)


def _is_discrete(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _is_mask(tensor: torch.Tensor) -> bool:
    return not tensor.is_complex() and bool(((tensor == 0) | (tensor == 1)).all())


def _varies(tensor: torch.Tensor) -> bool:
    return bool((tensor != tensor.reshape(-1)[0]).any())


def _ascends(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 0 and bool((tensor[..., 1:] >= tensor[..., :-1]).all())


def _rises(tensor: torch.Tensor) -> bool:
    return _varies(tensor) and _ascends(tensor)


def _descends(mask: torch.Tensor) -> bool:
    return bool((mask[..., 1:] <= mask[..., :-1]).all())


def _is_one_hot(mask: torch.Tensor) -> bool:
    return bool((mask.long().sum(-1) == 1).all())


def _is_square(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] > 1


def _is_triangular(mask: torch.Tensor) -> bool:
    if not _is_square(mask):
        return False
    whole = mask.long()
    return torch.equal(whole, torch.ones_like(whole).tril()) or torch.equal(
        whole, torch.ones_like(whole).triu()
    )


def _is_symmetric(tensor: torch.Tensor) -> bool:
    return _is_square(tensor) and torch.equal(tensor, tensor.mT)


def _has_norm(tensor: torch.Tensor, p: int) -> bool:
    if tensor.shape[-1] < 2 or (p == 1 and bool((tensor < 0).any())):
        return False
    return bool(((tensor.float().norm(p=p, dim=-1) - 1).abs() < _CLOSE).all())
