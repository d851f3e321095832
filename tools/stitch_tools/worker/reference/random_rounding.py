"""How else an honest program may round: the oracle with every operation rounded at random.

The reference's own error on one draw is a single sample, and none at all where the reference is in fp64.
Where an output cancels to next to nothing, it says little about what another order of summation gives. So the
oracle is run some more times, and each result that the reference's type cannot hold is moved by up to half an
eps, enlarged by the square root of the length of its sum; plain sums have their terms moved, since only those
know what was cancelled. (D. S. Parker, Monte Carlo Arithmetic, 1997.)

A norm is one operation that hides sums: what its mean is off by moves a whole row, channel or group alike,
and weighs the more the smaller the deviation is beside the mean. Equal means are off by the same, as in any
program that computes each of them alike. A variance in one pass, the mean of squares less the square of the
mean, is off by the rounding of the squares. Operands of products move as far, too, as a format rounds them
that the contract allows.
"""

import math
from collections.abc import Iterator
from typing import cast

import torch
from torch._ops import OpOverload

from stitch_tools.worker.reference.oracle import Fp64Mode, OracleRun, run_oracle
from stitch_tools.worker.reference.rounding_depth import (
    OpArguments,
    OpKeywords,
    allowed_eps,
    dtype_eps,
    reduction_length,
    schema_of,
)
from stitch_tools.worker.trees import tensors_in

SAMPLES = 4
"""Evaluations beside the reference's own: all small by chance once in 10,000 times, for a single number."""

_SEED = 0x0DDE
# Rounding to nearest is off by at most this share of an eps.
_HALF = 0.5
# Noise of a whole format's rounding on both operands gives twice the error of operands that are cut off.
_COARSE = 0.5
_PRODUCTS = ("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "convolution")
# Operations that add their first operand's elements, or products of them.
_SUMS = ("sum", "mean", "cumsum", *_PRODUCTS)
# Operations that subtract a mean, and give it beside the result with the inverse of the deviation.
_NORMS = (
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
    "cudnn_batch_norm",
)
# Those whose first operand is only added: the terms come second.
_ADDED_TO = ("addmm", "baddbmm", "addmv")


def other_roundings(
    module: torch.nn.Module,
    arguments: object,
    formats: tuple[str, str],
    *,
    samples: int = SAMPLES,
    forward_seed: int | None,
    device: str | None,
) -> Iterator[OracleRun]:
    """Runs of the oracle that round as the reference might have, each otherwise.

    Args:
        module: the reference.
        arguments: inputs of the draw.
        formats: what the contract allows in matrix products and in convolutions.
        samples: how many.
        forward_seed: of the draw.
        device: where the oracle runs.

    Raises:
        Exception: whatever the user's code raises.
    """
    for sample in range(samples):
        mode = _Rounded(_SEED + sample, formats)
        yield run_oracle(module, arguments, forward_seed=forward_seed, device=device, mode=mode)


class _Rounded(Fp64Mode):
    """Fp64, with noise of the reference's own precision on what each operation gives."""

    def __init__(self, seed: int, formats: tuple[str, str]) -> None:
        super().__init__()
        self._seed = seed
        self._matmul, self._conv = formats
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: OpArguments = (), kwargs: OpKeywords | None = None
    ) -> object:
        operands = tensors_in((args, kwargs))
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if _name(func) in _NORMS:
            self._shift(_name(func), args, cast("OpArguments", out))
        inputs = {leaf.untyped_storage().data_ptr() for leaf in operands}
        length = 1 if _name(func) in _SUMS else reduction_length(_name(func), args, out)
        for leaf in tensors_in(out):
            # A view is no result, and what nothing went into is not rounded.
            fresh = leaf.untyped_storage().data_ptr() not in inputs
            if operands and (fresh or schema_of(func).is_mutable):
                self._round(leaf, length)
        return out

    def _wide(self, func: OpOverload, args: OpArguments, kwargs: OpKeywords) -> object:
        out = super()._wide(func, args, kwargs)
        name = _name(func)
        if name not in _SUMS or schema_of(func).is_mutable:
            return out
        place = 1 if name in _ADDED_TO else 0
        precision = self._conv if name == "convolution" else self._matmul if name in _PRODUCTS else "fp32"
        moved = list(args)
        moved[place] = self._moved(args[place], math.sqrt(reduction_length(name, args, out)), precision)
        if name in _PRODUCTS:
            moved[place + 1] = self._moved(args[place + 1], 0.0, precision)
        return super()._wide(func, tuple(moved), kwargs)

    def _moved(self, terms: object, times: float, precision: str) -> object:
        """An operand that is off by so many times its own rounding, or by that to a coarser format."""
        if not isinstance(terms, torch.Tensor) or not terms.is_floating_point() or _integral(terms):
            return terms
        own = dtype_eps(self.notes.own_dtype(terms))
        coarse = allowed_eps(own, precision)
        share = max(own * times, _COARSE * coarse if coarse > own else 0.0)
        return terms.double().mul(self._noise(terms, share)) if share else terms

    def _shift(self, name: str, args: OpArguments, out: OpArguments) -> None:
        """Move in place what a norm gives as if its means and variances were off by a rounded sum's error."""
        result, mean, inverse = out[:3]
        weight = args[2 if name == "native_layer_norm" else 1]
        if not mean.numel() or result.dtype != torch.float64:
            return  # running statistics are no sums
        # Sums are kept in fp32 at least, whatever goes in.
        eps = min(dtype_eps(self.notes.own_dtype(result)), dtype_eps(torch.float32))
        values, which = mean.float().unique(return_inverse=True)
        share = eps * math.sqrt(result.numel() // mean.numel())
        beside = mean * inverse
        shift = self._noise(values, share).sub_(1)[which].mul_(beside)
        stretch = self._noise(mean, share).sub_(1).mul_(beside.square()).mul_(-0.5)
        if name != "native_layer_norm":
            shift, stretch = (_over_channels(name, row, result) for row in (shift, stretch))
            weight = None if weight is None else weight.view(-1, *(1,) * (result.dim() - 2))
        result.addcmul_(result, stretch).sub_(shift if weight is None else shift * weight)

    def _round(self, leaf: torch.Tensor, length: int) -> None:
        """Move in place what is not held exactly."""
        own = self.notes.own_dtype(leaf)
        if leaf.dtype != torch.float64 or not own.is_floating_point or not leaf.numel():
            return
        exact = leaf == (leaf.round() if own == torch.float64 else leaf.to(own))
        noise = self._noise(leaf, dtype_eps(own) * math.sqrt(length))
        leaf.mul_(noise.masked_fill_(exact, 1.0))

    def _noise(self, like: torch.Tensor, share: float) -> torch.Tensor:
        generator = self._generators.get(like.device)
        if generator is None:
            generator = torch.Generator(like.device).manual_seed(self._seed)
            self._generators[like.device] = generator
        noise = torch.rand(like.shape, generator=generator, device=like.device, dtype=torch.float64)
        return noise.mul_(2).sub_(1).mul_(_HALF * share).add_(1)


def _over_channels(name: str, values: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A value per sample and group, or per channel, in the result's dimensions."""
    channels = result.shape[1]
    if name == "native_group_norm":  # the group's channels lie side by side
        values = values.repeat_interleave(channels // values.shape[1], 1)
    return values.reshape(-1, channels, *(1,) * (result.dim() - 2))


def _name(func: OpOverload) -> str:
    return str(schema_of(func).name).removeprefix("aten::").rstrip("_")


def _integral(values: torch.Tensor) -> bool:
    return bool((values == values.round()).all())
