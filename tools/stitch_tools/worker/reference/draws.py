"""Inputs of one draw: the task's own maker, and signed, scaled and structured variations of what it makes."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from stitch_tools.worker.aliased_inputs import map_shared
from stitch_tools.worker.reference.draw_kinds import MIXED
from stitch_tools.worker.reference.draw_places import (
    at_hand,
    generator_beside,
    number_below,
    where_there_is_room,
)
from stitch_tools.worker.reference.input_structure import (
    ASCENDING,
    InputStructure,
    StructureLostError,
    find_structure,
)
from stitch_tools.worker.reference.load_reference import LoadedReference
from stitch_tools.worker.timed.input_renewal import mix
from stitch_tools.worker.trees import computable, flatten_inputs, fresh_copy

_OUTLIER_SHARE = 1e-3
_OUTLIER_FACTOR = 100.0
# Of the row's value: a variance in one pass loses eight bits, and a norm of such rows still decides.
_ROW_NOISE = 2.0**-4
# Of the rms: large enough to rule a softmax, and small enough for a variance around any element.
_PEAK = 8.0
_FLIPPED_SHARE = 1 / 8
# Inputs of this size are not made half as large again, only by one row.
_LARGE_BYTES = 1 << 28
# Larger ones are not made twice to see what they have in common.
_COMPARED_BYTES = 1 << 30
_COMPARED_SEEDS = 0x51AB5, 0x7E57ED
# Kinds that leave nothing of the task's own values: a program that knows where a mask lies is found out.
_EVERYWHERE = ("constants", "zeros", "near-constant")
# Kinds whose values lie far outside of the task's own.
_BEYOND = ("scaled", "outliers", "amplified", "spikes", "towers")
AMPLIFICATION = 64.0
"""Factor of `amplified` inputs, by which the sensitivity probes try to make a task react."""
# Of the rms: so large that a maximum off by a thousandth is off by more than an exponential stands, behind a
# scale of an eighth, too. Not further apart: rows beside each other are compared by the size of all.
_TOWERS = 2.0**17, 2.0**20


class DrawUnavailableError(Exception):
    """This kind of draw makes no sense for this task; the message says why."""


@dataclass(frozen=True)
class InputBounds:
    """What the contract says about floating inputs; None is unbounded."""

    low: float | None = None
    high: float | None = None
    largest: float = math.inf
    """What the narrowest format holds that the contract allows on the way to an output."""

    def allows(self, value: float) -> bool:
        """Whether an input may have this value."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def clamp(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor within the bounds."""
        if self.low is None and self.high is None:
            return tensor
        return tensor.clamp(self.low, self.high)


def make_draw(reference: LoadedReference, kind: str, seed: int, bounds: InputBounds) -> object:
    """Arguments of one call, in fresh memory with the strides (and the sharing of memory) of the task's own.

    Kinds are `own-N`, those of `STRUCTURED` and `BATCHES`, `altered-N` (N values are others than those of
    `own-1` from the same seed), `size-N` (that leading size), `maker-NAME` (what another input maker of
    the task's file gives) and `mixed-TOKEN-SEED` (with stretches of floating tensors from the draw of SEED).

    Raises:
        DrawUnavailableError: the kind does not apply to this task.
        ReferenceFault: the task's input maker fails.
    """
    maker = kind.removeprefix("maker-") if kind.startswith("maker-") else None
    own = reference.make_inputs(seed, maker)
    device = reference.source.device
    placed = map_shared(own, lambda tensor: fresh_copy(tensor, device))
    if kind.partition("-")[0] in ("own", "maker"):
        return placed
    # Another stream than the maker's: its values must say nothing about where they are changed.
    generator = torch.Generator().manual_seed(seed ^ 0x9E3779B97F4A7C15 & (2**63 - 1))
    if kind.startswith(("batch-", "size-")):
        return _other_batch(reference, placed, seed, kind)
    tensors = flatten_inputs(placed).tensors
    if kind.startswith(f"{MIXED}-"):
        return _mixed(reference, placed, *map(int, kind.split("-")[1:]))
    if kind.startswith("altered-"):
        return _altered(reference, placed, seed, int(kind.removeprefix("altered-")), generator)
    kept = _kept(reference, tensors)
    if kind in _DISCRETE_CHANGES:
        return _discrete_draw(kind, placed, kept, generator)
    if not any(tensor.is_floating_point() and tensor.numel() for tensor in tensors):
        empty = any(tensor.is_floating_point() for tensor in tensors)
        raise DrawUnavailableError(
            "the task's floating inputs have no elements" if empty else "the task has no floating inputs"
        )
    _check_kind(kind, tensors, bounds)

    def apply(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor

        def make(near: torch.Tensor) -> torch.Tensor:
            own = near.float()
            changed = _changed(kind, own, generator_beside(generator, own.device))
            return _held(_structured(kept[id(tensor)], own, bounds.clamp(changed)), tensor.dtype)

        return _filled_like(tensor, where_there_is_room(tensor, make))

    return map_shared(placed, apply)


def structures_of(reference: LoadedReference) -> tuple[InputStructure, ...]:
    """What holds for each input tensor in every draw of the task's maker; found once.

    Raises:
        ReferenceFault: the task's input maker fails.
    """
    if reference.structures is None:
        draws = [flatten_inputs(reference.make_inputs(_COMPARED_SEEDS[0])).tensors]
        large = sum(tensor.nbytes for tensor in draws[0]) > _COMPARED_BYTES
        if not large:
            draws.append(flatten_inputs(reference.make_inputs(_COMPARED_SEEDS[1])).tensors)
        alike = not large and len(draws[0]) == len(draws[1])
        comparable = alike and reference.source.keep_structure
        reference.structures = (
            _common_structure(draws, reference.source.device)
            if comparable
            else (InputStructure(),) * len(draws[0])
        )
    return reference.structures


def _common_structure(
    draws: Sequence[Sequence[torch.Tensor]], device: torch.device | str
) -> tuple[InputStructure, ...]:
    """What holds in all draws; looked for on the host where the device has no room."""
    with contextlib.suppress(torch.OutOfMemoryError):
        return find_structure([[at_hand(tensor.detach(), device) for tensor in draw] for draw in draws])
    return find_structure([[tensor.detach().cpu() for tensor in draw] for draw in draws])


def _kept(reference: LoadedReference, tensors: Sequence[torch.Tensor]) -> dict[int, InputStructure]:
    """The structure of each of a draw's tensors, by its id. A maker may give more of them at every call."""
    found = structures_of(reference)
    if len(found) != len(tensors):
        found = (InputStructure(),) * len(tensors)
    return {id(tensor): row for tensor, row in zip(tensors, found, strict=True)}


def _structured(structure: InputStructure, own: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    try:
        return structure.keep(own, values)
    except StructureLostError as error:
        raise DrawUnavailableError(str(error)) from error


def _changed(kind: str, values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The values of a kind. A mask of minus infinity stays one, or gives way as a whole.

    Its size would be that of every peak, its sign turned asks for the mean of nothing, and a constant taken
    from it masks all: outputs would be NaN, and such a draw decides nothing.
    """
    known = values.isfinite()
    if bool(known.all()):
        return _CHANGES[kind](values, generator)
    changed = _CHANGES[kind](values.where(known, 0.0), generator)
    return changed if kind in _EVERYWHERE else changed.where(known, values)


def _held(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The finite values brought into the type's range: beyond it some 8-bit floats know nothing but NaN."""
    largest = min(torch.finfo(dtype).max, torch.finfo(values.dtype).max)
    return values.where(values.isinf(), values.clamp(-largest, largest))


def _check_kind(kind: str, tensors: tuple[torch.Tensor, ...], bounds: InputBounds) -> None:
    floats = [computable(row) for row in tensors if row.is_floating_point() and row.numel()]
    if kind == "zeros" and not bounds.allows(0.0):
        raise DrawUnavailableError("the contract does not allow zero as an input")
    if kind == "signed":
        if all(bool((tensor < 0).any()) and bool((tensor > 0).any()) for tensor in floats):
            raise DrawUnavailableError("the task's own inputs have both signs")
        if not (bounds.allows(-1.0) and bounds.allows(1.0)):
            raise DrawUnavailableError("the contract does not allow both signs")
    if kind == "negative":
        if all(bool((tensor <= 0).all()) for tensor in floats):
            raise DrawUnavailableError("the task's own inputs have no positive values")
        if bounds.low is not None and bounds.low >= 0:
            raise DrawUnavailableError("the contract does not allow negative inputs")
    if kind in _BEYOND and bounds.low is not None and bounds.high is not None:
        raise DrawUnavailableError("the contract bounds the inputs on both sides")
    largest = min(bounds.largest, *(torch.finfo(row.dtype).max for row in tensors if row.is_floating_point()))
    if kind == "towers" and largest < _TOWERS[1]:
        raise DrawUnavailableError(
            "the inputs' type, or a format that the contract allows, holds no such values"
        )


def _discrete_draw(
    kind: str, placed: object, kept: Mapping[int, InputStructure], generator: torch.Generator
) -> object:
    applies, missing, change = _DISCRETE_CHANGES[kind]
    fitting = [tensor for tensor in flatten_inputs(placed).tensors if applies(tensor)]
    if not fitting:
        raise DrawUnavailableError(f"the task has no {missing}")
    reasons = {kept[id(tensor)].left_alone for tensor in fitting}
    if "" not in reasons:
        raise DrawUnavailableError(f"the maker's values stay: {', '.join(sorted(reasons))}")

    def apply(tensor: torch.Tensor) -> torch.Tensor:
        if not applies(tensor) or kept[id(tensor)].left_alone:
            return tensor

        def make(near: torch.Tensor) -> torch.Tensor:
            return change(near, generator_beside(generator, near.device))

        return _filled_like(tensor, where_there_is_room(tensor, make))

    return map_shared(placed, apply)


def _signed(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    signs = torch.randint(0, 2, values.shape, generator=generator, device=values.device) * 2 - 1
    return values * signs


def _negative(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    # A maximum that starts from 0, or a window that is filled up with zeros.
    return -values.abs()


def _scaled(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    # Between 4 and 16, up or down: outside what a program tuned on the task's own inputs has seen.
    factor = 2.0 ** float(2 + 2 * torch.rand((), generator=generator, device=generator.device))
    return values * (
        factor if float(torch.rand((), generator=generator, device=generator.device)) < 0.5 else 1.0 / factor
    )


def _outliers(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    picked = torch.rand(values.shape, generator=generator, device=values.device) < _OUTLIER_SHARE
    picked.view(-1)[number_below(values.numel(), generator)] = True
    return torch.where(picked, values * _OUTLIER_FACTOR, values)


def _peaks(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One large element in each last-axis row: in turn in the first, the last and any other column."""
    rows = values.reshape(-1, values.shape[-1] if values.dim() else 1).clone()
    count, width = rows.shape
    every = torch.arange(count, device=values.device)
    turn = (every + number_below(3, generator)) % 3
    columns = torch.randint(width, (count,), generator=generator, device=values.device)
    columns = torch.where(turn == 0, 0, torch.where(turn == 1, width - 1, columns))
    place = (every, columns)
    height = _PEAK * float(values.double().square().mean().sqrt())
    rows[place] = torch.where(rows[place] < 0, -height, height)
    return rows.view(values.shape)


def _spiked(values: torch.Tensor, lowest: float, highest: float, generator: torch.Generator) -> torch.Tensor:
    """The values with a spike of `lowest` to `highest` times their rms in each last-axis row.

    In half of the rows it lies where blocks of columns begin or end, in a quarter just beyond the diagonal,
    which a causal mask hides, else anywhere. It is positive until each edge had one, then of either sign.
    """
    rows = values.reshape(-1, values.shape[-1] if values.dim() else 1).clone()
    count, width = rows.shape
    matrix = values.shape[-2] if values.dim() > 1 else 1
    edges, row = _edges(width).to(values.device), torch.arange(count, device=values.device)
    # By turns along the rows of a matrix and from matrix to matrix: each row has each turn in some matrix.
    turn = (row % matrix + row // matrix + number_below(4, generator)) % 4
    number = (turn < 2).cumsum(0)
    start = number_below(len(edges), generator)
    columns = torch.randint(width, (count,), generator=generator, device=values.device)
    columns = torch.where(turn == 2, (row % matrix + 1) % width, columns)
    columns = torch.where(turn < 2, edges[(number + start) % len(edges)], columns)
    signs = torch.where((number <= len(edges)) | (row % 2 == 0), 1.0, -1.0)
    heights = lowest * (highest / lowest) ** torch.rand(count, generator=generator, device=values.device)
    rows[row, columns] = signs * heights * float(values.double().square().mean().sqrt())
    return rows.view(values.shape)


def _edges(width: int) -> torch.Tensor:
    """Columns next to a power of two, where unrolled loops and tiles begin and end, and the last one."""
    powers = [1 << exponent for exponent in range(width.bit_length())]
    near = {0, width - 1, *powers, *(power - 1 for power in powers)}
    return torch.tensor(sorted(column for column in near if column < width))


def _spikes(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _spiked(values, AMPLIFICATION * _PEAK, AMPLIFICATION * _PEAK, generator)


def _towers(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _spiked(values, *_TOWERS, generator)


def _constants(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    position = number_below(values.numel(), generator)
    return torch.full_like(values, float(values.reshape(-1)[position]))


def _zeros(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros_like(values)


def _near_constant(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    rows = values[..., :1] if values.dim() else values
    if bool((values < 0).any()) and bool((values > 0).any()):
        rows = rows.abs()  # a minimum that starts from 0; `negative` is for a maximum
    return rows + rows.abs() * _ROW_NOISE * torch.randn(
        values.shape, generator=generator, device=values.device
    )


def _amplified(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return values * AMPLIFICATION


_CHANGES: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "signed": _signed,
    "negative": _negative,
    "scaled": _scaled,
    "amplified": _amplified,
    "outliers": _outliers,
    "peaks": _peaks,
    "spikes": _spikes,
    "towers": _towers,
    "constants": _constants,
    "zeros": _zeros,
    "near-constant": _near_constant,
}


def _is_discrete(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _is_mixed(tensor: torch.Tensor) -> bool:
    return _is_discrete(tensor) and tensor.numel() > 1


def _is_mask(tensor: torch.Tensor) -> bool:
    return _is_discrete(tensor) and bool(tensor.numel()) and bool(((tensor == 0) | (tensor == 1)).all())


def _permuted(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    flat = values.reshape(-1)
    return flat[torch.randperm(flat.numel(), generator=generator, device=flat.device)].view(values.shape)


def _flipped(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    picked = torch.rand(values.shape, generator=generator, device=values.device) < _FLIPPED_SHARE
    picked.view(-1)[number_below(values.numel(), generator)] = True
    return torch.where(picked, (values == 0).to(values.dtype), values)


_DISCRETE_CHANGES: dict[
    str,
    tuple[Callable[[torch.Tensor], bool], str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]],
] = {
    "permuted": (_is_mixed, "integer or bool inputs of several elements", _permuted),
    "flipped": (_is_mask, "masks", _flipped),
}


def _altered(
    reference: LoadedReference, own: object, seed: int, count: int, generator: torch.Generator
) -> object:
    """`own` with `count` values of each floating tensor (without such, of each) from another draw."""
    tensors = [tensor for tensor in flatten_inputs(own).tensors if tensor.numel()]
    kept = _kept(reference, flatten_inputs(own).tensors)
    tensors = [tensor for tensor in tensors if not kept[id(tensor)].left_alone]
    if not tensors:
        raise DrawUnavailableError("the maker's values stay: they depend on each other")
    chosen = [tensor for tensor in tensors if tensor.is_floating_point()] or tensors
    others = flatten_inputs(reference.make_inputs(seed ^ 1)).tensors
    donors = {id(tensor): other for tensor, other in zip(flatten_inputs(own).tensors, others, strict=True)}
    changed = False

    def alter(tensor: torch.Tensor) -> torch.Tensor:
        if not any(tensor is row for row in chosen):
            return tensor

        def make(near: torch.Tensor) -> torch.Tensor:
            nonlocal changed
            values = near.reshape(-1).clone()
            places = torch.randint(values.numel(), (count,), generator=generator).to(values.device)
            donor = donors[id(tensor)].to(values.device).reshape(-1)
            if donor.shape != values.shape or torch.equal(donor, values):
                # The maker gives the same at every call: values from elsewhere then.
                donor = values.roll(1 + number_below(values.numel(), generator))
            before = values.clone()
            values[places] = donor[places]
            altered = _structured(kept[id(tensor)], before.view(tensor.shape), values.view(tensor.shape))
            changed |= not torch.equal(altered.reshape(-1), before)
            return altered

        return _filled_like(tensor, where_there_is_room(tensor, make))

    result = map_shared(own, alter)
    if not changed:
        raise DrawUnavailableError("the task's maker gives one value everywhere")
    return result


def _mixed(reference: LoadedReference, own: object, token: int, donor_seed: int) -> object:
    """`own` with the stretches that a timed call's inputs were renewed with."""
    tensors = flatten_inputs(own).tensors
    donors = [
        fresh_copy(tensor, reference.source.device)
        for tensor in flatten_inputs(reference.make_inputs(donor_seed)).tensors
    ]
    before = [tensor.clone() for tensor in tensors]
    if [_form(tensor) for tensor in tensors] != [_form(tensor) for tensor in donors]:
        raise DrawUnavailableError("the task's maker gives other shapes at each call")
    mix(tensors, donors, token)
    if all(map(torch.equal, before, tensors)):
        raise DrawUnavailableError("the task has no floating inputs that differ from draw to draw")
    return own


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype


def _filled_like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`values` in the layout of `tensor`; overlapping memory (expanded tensors) keeps one value per cell."""
    result = fresh_copy(tensor)
    distinct = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    result[distinct].copy_(values[distinct])
    return result


def _other_batch(reference: LoadedReference, own: object, seed: int, kind: str) -> object:
    tensors = flatten_inputs(own).tensors
    sizes = {tensor.shape[0] if tensor.dim() else -1 for tensor in tensors}
    if sizes == {0}:
        raise DrawUnavailableError("the inputs' leading size is 0, which holds nothing to make more of")
    if len(sizes) != 1 or min(sizes) < 1:
        raise DrawUnavailableError("the inputs do not share a leading size")
    kept = _kept(reference, tensors)
    for tensor in tensors:
        row = kept[id(tensor)]
        if row.left_alone == ASCENDING or (row.square and tensor.dim() == 2):
            reason = f"an input has what another leading size would break: {row.describe()}"
            raise DrawUnavailableError(reason)
    size = sizes.pop()
    other = _other_size(kind, size, sum(tensor.nbytes for tensor in tensors))
    if other == size and kind.startswith("batch-"):
        raise DrawUnavailableError(f"{other} is the task's own leading size")
    sets = [tensors]
    while len(sets) * size < other:
        sets.append(flatten_inputs(reference.make_inputs(seed ^ len(sets))).tensors)
    index_of = {id(tensor): index for index, tensor in enumerate(tensors)}

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        if other <= size:
            return fresh_copy(tensor[:other])
        column = [row[index_of[id(tensor)]].to(tensor.device) for row in sets]
        return torch.cat(column)[:other].clone()

    return map_shared(own, resize)


def _other_size(kind: str, size: int, nbytes: int) -> int:
    """The leading size of a kind, where the task's own is `size`."""
    if kind == "batch-probe":
        return size // 2 + 1 if size > 2 else size + 1
    if kind == "batch-larger":
        return size + 1 + (size // 2 if nbytes < _LARGE_BYTES else 0)
    return int(kind.rpartition("-")[2])
