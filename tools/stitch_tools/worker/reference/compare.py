"""The equality rule: how far an output may be from the oracle's, given the reference's own error."""

import math
from dataclasses import dataclass, replace

import torch

from stitch_tools.worker.reference.error_distance import OwnError, distance_of, figures_of, size_of
from stitch_tools.worker.reference.rounding_allowance import (
    OWN_ERROR_FACTOR,
    EqualityRule,
    Expected,
    Honest,
    ceiling,
    honest_of,
)

_TINY = torch.finfo(torch.float64).tiny
_DECIDED_BY_ROUNDING = "the reference decides otherwise there where it rounds otherwise"


@dataclass(frozen=True)
class OutputComparison:
    """The fields of OutputError, and what becomes of the draw."""

    output: str
    max_error: float | None = None
    rms_error: float | None = None
    reference_error: float | None = None
    bound: float | None = None
    worst_index: tuple[int, ...] | None = None
    expected: float | None = None
    actual: float | None = None
    rms: float | None = None
    floor: float | None = None
    undecided: str | None = None
    problem: str | None = None
    allow: str | None = None
    allow_rtol: float | None = None
    decided: bool = True
    """Whether any element was compared."""
    is_open: bool = False
    """Wrong, unless it turns out how else the reference might have rounded."""

    def as_json(self) -> dict[str, object]:
        """The fields of OutputError, with None for numbers that JSON lacks."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in vars(self).items()
            if name not in ("decided", "is_open")
        }


def compare_output(actual: torch.Tensor, expected: Expected, rule: EqualityRule) -> OutputComparison:
    """How `actual` compares; `problem` is None when it counts as equal."""
    reference = expected.reference
    if actual.shape != reference.shape or actual.dtype != reference.dtype:
        return OutputComparison(
            expected.name,
            problem=f"is {_kind(actual)}, expected {_kind(reference)}",
        )
    if actual.numel() == 0:
        return OutputComparison(expected.name)
    if actual.is_complex():
        return compare_output(torch.view_as_real(actual), expected.parts(), rule)
    if not actual.is_floating_point():
        return _compare_discrete(actual, expected, rule)
    return _compare_floating(actual, expected, rule)


def _compare_floating(actual: torch.Tensor, expected: Expected, rule: EqualityRule) -> OutputComparison:
    wide, reference, oracle = actual.double(), expected.reference.double(), expected.oracle.double()
    usable = wide.isfinite() & oracle.isfinite()
    if not bool((usable & reference.isfinite()).all()):
        # Where reference and oracle differ (fp32 overflows, fp64 does not) a program may follow either.
        odd = _pattern(wide) != _pattern(reference)
        odd &= _pattern(wide) != _pattern(oracle)
        if bool(odd.any()):
            return _pattern_problem(expected.name, odd, wide, reference)
    if not bool(usable.any()):
        return OutputComparison(expected.name)
    honest = expected.honest or honest_of(expected, rule)
    distance = distance_of(wide, oracle, usable)
    left_open = honest.left_open(distance) if rule.made_up else None
    undecided = None
    if left_open is not None:
        distance.masked_fill_(left_open, 0.0)
        undecided = f"{int(left_open.sum())} of {left_open.numel()} values: {honest.because}"
        if bool(left_open.all()):
            return OutputComparison(expected.name, rms=honest.rms, undecided=undecided, decided=False)
    result = _judge(distance, size_of(oracle, usable), left_open, expected, honest, rule)
    index = result.worst_index or ()
    return replace(
        result,
        expected=float(oracle[index]),
        actual=float(wide[index]),
        undecided=undecided,
    )


def _judge(
    distance: torch.Tensor,
    size: torch.Tensor,
    left_open: torch.Tensor | None,
    expected: Expected,
    honest: Honest,
    rule: EqualityRule,
) -> OutputComparison:
    """The figures of these distances, and what is wrong with them."""
    rms, own = honest.rms, honest.error
    floor = expected.rounding.floor(rule.matmul_precision, rule.conv_precision)
    scale = size.clamp_min(rms or 1.0)
    errors = figures_of(distance, size, rms)
    limit = ceiling(scale, expected, rule, rms, own)
    beyond = bool((distance > limit).any())
    # A structured draw may cancel to nothing: own error and rms are then both rounding, and say nothing.
    if not (rule.structured and rms <= rule.atol):
        limit = limit.minimum(max(OWN_ERROR_FACTOR * own.largest, floor) * scale)
    # Of those elements that come nearest to what they may be off by, or go beyond it, the first.
    nearness = distance / limit.clamp_min(_TINY)
    if left_open is not None:
        nearness.masked_fill_(left_open, -1.0)
    index = _unravel(int(nearness.argmax()), distance.shape)
    unit = float(scale[index])
    largest, bound = float(distance[index]) / unit, float(limit[index]) / unit
    problem = None
    if largest > bound:
        problem = (
            f"largest relative error {largest:.3g} (relative to the larger of the output's rms and the value)"
            f" is above the bound {bound:.3g}"
        )
        if honest.undecided is not None and bool(honest.undecided[index]):
            problem += f" ({honest.because})"
    elif rms > rule.atol:
        problem = _spread_problem(errors, own, floor)
    return OutputComparison(
        expected.name,
        max_error=largest,
        rms_error=errors.rms,
        reference_error=own.largest,
        bound=bound,
        worst_index=index,
        rms=rms,
        floor=floor,
        problem=problem,
        # Other roundings raise no bound above the ceiling, but that behind convolutions in a coarser format,
        # which is made of the own error; where all cancels they may say whose fault it is.
        is_open=problem is not None
        and (
            rule.made_up
            or rms <= rule.atol
            or not beyond
            or expected.rounding.conv_eps(rule.conv_precision) > 0.0
        ),
    )


def _spread_problem(errors: OwnError, own: OwnError, floor: float) -> str | None:
    """What is wrong with errors that are small beside the largest values, or each by itself."""
    limit = max(OWN_ERROR_FACTOR * own.rms, floor)
    if errors.rms > limit:
        return f"rms error {errors.rms:.3g}, relative to the output's rms, is above the bound {limit:.3g}"
    limit = max(OWN_ERROR_FACTOR * own.sliced, floor)
    if errors.sliced > limit:
        slice_error = f"error {errors.sliced:.3g}, relative to one last-axis slice's rms"
        return f"{slice_error}, is above the bound {limit:.3g}"
    return None


def _compare_discrete(actual: torch.Tensor, expected: Expected, rule: EqualityRule) -> OutputComparison:
    # Either decision is right: between them lies nothing but the reference's own rounding.
    wrong = (actual != expected.reference) & (actual != expected.oracle)
    if expected.margin is not None and bool(wrong.any()):
        tolerance = max(
            expected.rounding.floor(rule.matmul_precision, rule.conv_precision), _own_flip_margin(expected)
        )
        wrong &= expected.margin.to(wrong.device) > tolerance
    if not bool(wrong.any()):
        return OutputComparison(expected.name)
    undecided = None
    left_open = _open_decisions(actual, wrong, expected, rule)
    if left_open is not None:
        undecided = f"{int(left_open.sum())} of {left_open.numel()} values: {_DECIDED_BY_ROUNDING}"
        wrong &= ~left_open
        if not bool(wrong.any()):
            return OutputComparison(expected.name, undecided=undecided, decided=not bool(left_open.all()))
    index = _first(wrong)
    return OutputComparison(
        expected.name,
        worst_index=index,
        expected=float(expected.oracle[index]),
        actual=float(actual[index]),
        undecided=undecided,
        problem=f"{int(wrong.sum())} of {wrong.numel()} values differ",
        is_open=rule.made_up,
    )


def _open_decisions(
    actual: torch.Tensor, wrong: torch.Tensor, expected: Expected, rule: EqualityRule
) -> torch.Tensor | None:
    """Elements that rounding alone decides, on draws that are not the task's own; None: there are no such."""
    if not rule.made_up:
        return None
    decisions = (expected.honest or honest_of(expected, rule)).decisions
    return None if decisions is None else decisions.left_open(actual, wrong)


def _own_flip_margin(expected: Expected) -> float:
    """The widest margin over which the reference's own rounding decided otherwise than the oracle."""
    flipped = expected.reference != expected.oracle
    if expected.margin is None or not bool(flipped.any()):
        return 0.0
    return float(expected.margin.to(flipped.device)[flipped].max())


def _pattern(values: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +inf, 3 -inf."""
    infinite = values.isinf().to(torch.uint8)
    return values.isnan().to(torch.uint8) + 2 * infinite + infinite * (values < 0).to(torch.uint8)


def _pattern_problem(
    name: str, odd: torch.Tensor, actual: torch.Tensor, reference: torch.Tensor
) -> OutputComparison:
    index = _first(odd)
    words = {0: "a number", 1: "NaN", 2: "+inf", 3: "-inf"}
    found = words[int(_pattern(actual[index]))]
    wanted = words[int(_pattern(reference[index]))]
    return OutputComparison(
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
