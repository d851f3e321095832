"""The equality rule: how far an output may be from the oracle's, given the reference's own error."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from stitch_tools.worker.reference.rounding import Rounding, dtype_eps
from stitch_tools.worker.reference.ulp import ulp_histogram

OWN_ERROR_FACTOR = 4.0
"""Starting value of DESIGN 6; docs/decisions/0003-equality.md has the calibration."""

_SLICE_LENGTH = 16
"""Shorter slices have no rms worth the name."""
_SLICE_SCALE = 2.0**-7
"""A slice is not scaled by less than this share of the whole output's rms: what cancels is not precise."""
_MOST_SLACK = 0.1
"""Share of the output's rms beyond which rounding of the inputs leaves nothing to compare."""
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Rule:
    """The contract's share of the rule."""

    rtol: float
    atol: float
    matmul_precision: str = "fp32"
    conv_precision: str = "fp32"
    structured: bool = False
    """A draw of ours, not of the task's maker: an output all below atol then only has to stay there."""


@dataclass(frozen=True)
class Verdict:
    """The fields of OutputError."""

    output: str
    max_error: float | None = None
    rms_error: float | None = None
    reference_error: float | None = None
    bound: float | None = None
    worst_index: tuple[int, ...] | None = None
    expected: float | None = None
    actual: float | None = None
    slack: float = 0.0
    rms: float | None = None
    floor: float | None = None
    ulp_histogram: tuple[int, ...] | None = None
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields of OutputError, with None for numbers that JSON lacks."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in vars(self).items()
        }


@dataclass(frozen=True)
class OwnError:
    """How far honest evaluations are from the oracle, in the figures that a program's are measured by."""

    largest: float = 0.0
    rms: float = 0.0
    sliced: float = 0.0

    def or_worse(self, other: "OwnError") -> "OwnError":
        """The larger of each figure."""
        return OwnError(*map(max, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class Expected:
    """What is known about one output of one draw."""

    name: str
    reference: torch.Tensor
    oracle: torch.Tensor
    rounding: Rounding
    margin: torch.Tensor | None = None
    slack: float = 0.0
    """Absolute error that rounding of the inputs alone excuses, on draws that are meant to be extreme."""
    others: OwnError = OwnError()
    """Of evaluations that round otherwise than the reference; they count beside its own."""


@dataclass(frozen=True)
class _Errors:
    """How far a value is from the oracle, beyond the slack."""

    distance: torch.Tensor
    """Absolute, 0 where one of the two is not finite."""
    scale: torch.Tensor
    """What an element's distance is measured by: the output's rms, or the element's own size if larger."""
    largest: float
    """Of the distances over their scale."""
    rms: float
    """Of the distances over the output's rms."""
    sliced: float
    """As `largest`, with the rms of the element's last-axis slice."""

    def own(self) -> OwnError:
        """The figures, without the elements."""
        return OwnError(self.largest, self.rms, self.sliced)


def compare_output(actual: torch.Tensor, expected: Expected, rule: Rule) -> Verdict:
    """How `actual` compares; `problem` is None when it counts as equal."""
    reference = expected.reference
    if actual.shape != reference.shape or actual.dtype != reference.dtype:
        return Verdict(
            expected.name,
            problem=f"is {_kind(actual)}, expected {_kind(reference)}",
        )
    if actual.numel() == 0:
        return Verdict(expected.name)
    if actual.is_complex():
        return compare_output(torch.view_as_real(actual), _real(expected), rule)
    if not actual.is_floating_point():
        return _compare_discrete(actual, expected, rule)
    return _compare_floating(actual, expected, rule)


def error_of(value: torch.Tensor, expected: Expected) -> OwnError:
    """The figures of an honest evaluation of this output; none of what is discrete or has another form."""
    if value.is_complex() and expected.oracle.is_complex():
        value, expected = torch.view_as_real(value), _real(expected)
    if value.shape != expected.oracle.shape or not value.is_floating_point():
        return OwnError()
    finite = expected.oracle.isfinite()
    usable = finite & value.isfinite()
    if not bool(usable.any()):
        return OwnError()
    return _errors(value.double(), expected, usable, _rms(_only(expected.oracle, finite))).own()


def beyond_ceiling(actual: torch.Tensor, expected: Expected, rule: Rule) -> bool:
    """Whether an output of the right form is further off than the contract allows, whatever rounds."""
    if actual.is_complex():
        actual, expected = torch.view_as_real(actual), _real(expected)
    if not actual.is_floating_point():
        return False
    usable = actual.isfinite() & expected.oracle.isfinite()
    rms = _rms(_only(expected.oracle, usable))
    errors = _errors(actual.double(), expected, usable, rms)
    return bool((errors.distance > _ceiling(errors.scale, expected, rule, rms)).any())


def undecidable(expected: Expected, rule: Rule) -> str | None:
    """Why no program could be judged on this draw: the reference itself is further off than the ceiling."""
    reference, oracle = expected.reference, expected.oracle
    if not reference.is_floating_point() or not reference.numel():
        return None
    wide, usable = reference.double(), reference.isfinite() & oracle.isfinite()
    rms = _rms(_only(oracle, usable))
    # An output below atol is rounding of nothing: there is no size to take a share of.
    if expected.slack > _MOST_SLACK * (rms if rms > rule.atol else 1.0):
        return f"the last bit of the inputs moves output {expected.name} too far"
    own = _errors(wide, expected, usable, rms)
    if bool((OWN_ERROR_FACTOR * own.distance > _ceiling(own.scale, expected, rule, rms)).any()):
        return (
            f"in output {expected.name} the reference's own error of {own.largest:.2g}"
            " is too close to the ceiling"
        )
    return None


def _compare_floating(actual: torch.Tensor, expected: Expected, rule: Rule) -> Verdict:
    wide, reference, oracle = actual.double(), expected.reference.double(), expected.oracle.double()
    usable = wide.isfinite() & oracle.isfinite()
    if not bool((usable & reference.isfinite()).all()):
        odd = _pattern(wide) != _pattern(reference)
        odd &= _pattern(wide) != _pattern(oracle)
        if bool(odd.any()):
            return _pattern_problem(expected.name, odd, wide, reference)
    if not bool(usable.any()):
        return Verdict(expected.name)
    rms = _rms(_only(oracle, usable))
    errors = _errors(wide, expected, usable, rms)
    own = _errors(reference, expected, usable & reference.isfinite(), rms).own().or_worse(expected.others)
    floor = expected.rounding.floor(rule.matmul_precision, rule.conv_precision)
    allowed = _ceiling(errors.scale, expected, rule, rms)
    if not (rule.structured and rms <= rule.atol):
        allowed = allowed.minimum(max(OWN_ERROR_FACTOR * own.largest, floor) * errors.scale)
    # Of those elements that come nearest to what they may be off by, or go beyond it, the first.
    index = _unravel(int((errors.distance / allowed.clamp_min(_TINY)).argmax()), wide.shape)
    size = float(errors.scale[index])
    largest, bound = float(errors.distance[index]) / size, float(allowed[index]) / size
    problem = None
    if largest > bound:
        problem = (
            f"largest relative error {largest:.3g} (relative to the larger of the output's rms and the value)"
            f" is above the bound {bound:.3g}"
        )
    elif rms > rule.atol:
        problem = _spread_problem(errors, own, floor)
    return Verdict(
        expected.name,
        max_error=largest,
        rms_error=errors.rms,
        reference_error=own.largest,
        bound=bound,
        worst_index=index,
        expected=float(oracle[index]),
        actual=float(wide[index]),
        slack=expected.slack,
        rms=rms,
        floor=floor,
        ulp_histogram=ulp_histogram(actual, oracle),
        problem=problem,
    )


def _spread_problem(errors: _Errors, own: OwnError, floor: float) -> str | None:
    """What is wrong with errors that are small beside the largest values, or each by itself."""
    limit = max(OWN_ERROR_FACTOR * own.rms, floor)
    if errors.rms > limit:
        return f"rms error {errors.rms:.3g}, relative to the output's rms, is above the bound {limit:.3g}"
    limit = max(OWN_ERROR_FACTOR * own.sliced, floor)
    if errors.sliced > limit:
        slice_error = f"error {errors.sliced:.3g}, relative to one last-axis slice's rms"
        return f"{slice_error}, is above the bound {limit:.3g}"
    return None


def _compare_discrete(actual: torch.Tensor, expected: Expected, rule: Rule) -> Verdict:
    wrong = (actual != expected.reference) & (actual != expected.oracle)
    if expected.margin is not None and bool(wrong.any()):
        tolerance = max(
            expected.rounding.floor(rule.matmul_precision, rule.conv_precision), _own_flip_margin(expected)
        )
        wrong &= expected.margin.to(wrong.device) > tolerance
    if not bool(wrong.any()):
        return Verdict(expected.name)
    index = _first(wrong)
    return Verdict(
        expected.name,
        worst_index=index,
        expected=float(expected.oracle[index]),
        actual=float(actual[index]),
        problem=f"{int(wrong.sum())} of {wrong.numel()} values differ",
    )


def _own_flip_margin(expected: Expected) -> float:
    """The widest margin over which the reference's own rounding decided otherwise than the oracle."""
    flipped = expected.reference != expected.oracle
    if expected.margin is None or not bool(flipped.any()):
        return 0.0
    return float(expected.margin.to(flipped.device)[flipped].max())


def _real(expected: Expected) -> Expected:
    """Complex numbers as pairs."""
    pairs = torch.view_as_real(expected.reference), torch.view_as_real(expected.oracle)
    return replace(expected, reference=pairs[0], oracle=pairs[1], margin=None)


def _ceiling(scale: torch.Tensor, expected: Expected, rule: Rule, rms: float) -> torch.Tensor:
    """The contract's ceiling for each element, never below the rounding to the output's own type."""
    largest = _peak(_only(expected.oracle, expected.oracle.isfinite()))
    contract = (scale * (rule.rtol if rms else 0.0)).add_(rule.atol)
    return contract.clamp_min_(dtype_eps(expected.reference.dtype) * largest)


def _errors(value: torch.Tensor, expected: Expected, usable: torch.Tensor, rms: float) -> _Errors:
    # In place where a tensor is our own: most of the time goes to memory that is touched the first time.
    oracle, unit = expected.oracle.double(), rms or 1.0
    distance, size = (value - oracle).abs_(), oracle.abs()
    if not bool(usable.all()):
        distance.masked_fill_(~usable, 0.0)
        size.masked_fill_(~usable, 0.0)
    if expected.slack:
        distance.sub_(expected.slack).clamp_min_(0.0)
    scale = size.clamp_min(unit)
    sliced = 0.0
    if value.dim() >= 2 and value.shape[-1] >= _SLICE_LENGTH and value.numel() > value.shape[-1]:
        slice_rms = size.square().mean(-1, keepdim=True).sqrt_().clamp_min_(unit * _SLICE_SCALE)
        sliced = float((distance / size.maximum(slice_rms)).max())
    return _Errors(distance, scale, float((distance / scale).max()), _rms(distance) / unit, sliced)


def _only(values: torch.Tensor, usable: torch.Tensor) -> torch.Tensor:
    # Picking elements takes many times as long as looking whether that is needed.
    return values if bool(usable.all()) else values[usable]


def _peak(values: torch.Tensor) -> float:
    """The largest magnitude, 0 of nothing."""
    if not values.numel():
        return 0.0
    low, high = values.aminmax()
    return max(-float(low), float(high))


def _rms(values: torch.Tensor) -> float:
    # Scaled first, so that squares neither overflow nor vanish.
    peak = _peak(values)
    return 0.0 if peak == 0.0 else peak * float((values.double() / peak).square_().mean().sqrt())


def _pattern(values: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +inf, 3 -inf."""
    infinite = values.isinf().to(torch.uint8)
    return values.isnan().to(torch.uint8) + 2 * infinite + infinite * (values < 0).to(torch.uint8)


def _pattern_problem(name: str, odd: torch.Tensor, actual: torch.Tensor, reference: torch.Tensor) -> Verdict:
    index = _first(odd)
    words = {0: "a number", 1: "NaN", 2: "+inf", 3: "-inf"}
    found = words[int(_pattern(actual[index]))]
    wanted = words[int(_pattern(reference[index]))]
    return Verdict(
        name,
        worst_index=index,
        expected=float(reference[index]),
        actual=float(actual[index]),
        problem=f"{int(odd.sum())} of {odd.numel()} values are {found} where the reference has {wanted}",
    )


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    return _unravel(int(mask.flatten().to(torch.uint8).argmax()), mask.shape)


def _unravel(flat: int, shape: torch.Size) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        flat, position = divmod(flat, size)
        index.append(position)
    return tuple(reversed(index))


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
