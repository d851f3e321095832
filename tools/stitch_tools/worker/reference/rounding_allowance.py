"""What honest evaluations of one output are off by, and where that is more than the contract allows.

There no program can be told right from wrong: an element is `undecided` where four times the error of the
reference, or of one of its other roundings, is above the contract's ceiling. On values that the judge made up
such elements are not compared; on the task's own the ceiling rules, and the verdict says whose fault it is.
"""

import math
from dataclasses import dataclass, replace

import torch

from stitch_tools.worker.reference.discrete_outputs import Decisions
from stitch_tools.worker.reference.error_distance import (
    OwnError,
    distance_of,
    figures_of,
    only,
    peak_of,
    rms_of,
    size_of,
)
from stitch_tools.worker.reference.rounding_depth import FLOOR_FACTOR, Rounding, dtype_eps
from stitch_tools.worker.trees import computable

OWN_ERROR_FACTOR = 4.0
"""Starting value of DESIGN 6; docs/decisions/0003-equality.md has the calibration."""

# Where one element is undecided, those down to this share of the limit are precise by luck.
_ALIKE = 16.0
# Times the largest honest distance: what is further off is no rounding of any kind.
_FAR = 1024.0
_NONE = OwnError()


@dataclass(frozen=True)
class EqualityRule:
    """The contract's share of the rule."""

    rtol: float
    atol: float
    matmul_precision: str = "fp32"
    conv_precision: str = "fp32"
    structured: bool = False
    """A draw of other values than the task's maker gives: an output all below atol only has to stay there."""
    made_up: bool = False
    """A draw that is not the task's own: what is undecided on it is not compared."""
    narrowest: float = 0.0
    """Eps of the least precise type that the forward computes in."""


@dataclass(frozen=True)
class Honest:
    """What honest evaluations of one output are off by."""

    rms: float = 0.0
    """The oracle's, by which distances are measured."""
    error: OwnError = _NONE
    """Of the elements that are compared."""
    undecided: torch.Tensor | None = None
    """Which elements no program could be judged on; None: there are no such."""
    reach: float = 0.0
    """The largest honest distance at these."""
    because: str = ""
    decisions: Decisions | None = None
    """Of a discrete output: what honest evaluations made of it."""

    @property
    def wholly_undecided(self) -> bool:
        """Whether there is no element to judge a program on."""
        return self.undecided is not None and bool(self.undecided.all())

    def left_open(self, distance: torch.Tensor) -> torch.Tensor | None:
        """Undecided elements of a program that is as far off as rounding may be; None: there are no such."""
        if self.undecided is None:
            return None
        result = self.undecided & (distance <= _FAR * self.reach)
        return result if bool(result.any()) else None


@dataclass(frozen=True)
class Expected:
    """What is known about one output of one draw."""

    name: str
    reference: torch.Tensor
    oracle: torch.Tensor
    rounding: Rounding
    margin: torch.Tensor | None = None
    """Of a discrete output: how close each decision was, by the rms of the deciding values."""
    honest: Honest | None = None
    """None: nobody measured it yet."""

    def parts(self) -> "Expected":
        """Complex numbers as pairs, all others as they are."""
        if not self.reference.is_complex():
            return self
        pairs = torch.view_as_real(self.reference), torch.view_as_real(self.oracle)
        return replace(self, reference=pairs[0], oracle=pairs[1], margin=None)


class Evaluations:
    """Honest evaluations of one output: the reference's first, others as they come."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected.parts()
        reference, oracle = computable(self._expected.reference), self._expected.oracle
        self._measurable = reference.is_floating_point() and bool(reference.numel())
        self._decisions: Decisions | None = None
        self.incomplete = False
        """Whether there was no memory for all of them: nobody knows then what rounding explains."""
        if not self._measurable:
            if reference.numel() and reference.shape == oracle.shape:
                self._decisions = Decisions(oracle, factor=OWN_ERROR_FACTOR)
                self._decisions.add(reference)
            return
        self._finite = oracle.isfinite()
        usable = self._finite & reference.isfinite()
        if not bool(usable.any()):
            usable = self._finite
        self._rms = rms_of(only(oracle, usable))
        self._size = size_of(oracle, self._finite)
        self._error = _NONE
        self._worst = torch.zeros((), dtype=torch.float64, device=oracle.device)
        self.add(reference)

    def add(self, value: torch.Tensor) -> None:
        """Count one more; another form says nothing."""
        if self._decisions is not None:
            self._decisions.add(value)
        oracle = self._expected.oracle
        value = torch.view_as_real(value) if value.is_complex() else computable(value)
        if not self._measurable or value.shape != oracle.shape or not value.is_floating_point():
            return
        value = value.to(oracle.device)
        distance = distance_of(value, oracle, self._finite & value.isfinite())
        self._error = self._error.or_worse(figures_of(distance, self._size, self._rms))
        self._worst = distance.maximum(self._worst)

    def conclude(self, rule: EqualityRule) -> Honest:
        """What all of them amount to."""
        if not self._measurable:
            return Honest(decisions=self._decisions)
        expected, rms = self._expected, self._rms
        if self.incomplete:
            because = "there is no memory to see how far rounding moves it"
            return Honest(rms, self._error, torch.ones_like(self._finite), math.inf, because)
        # Most often the ceiling is that far off that no element needs to be looked at.
        if OWN_ERROR_FACTOR * self._error.largest <= (rule.rtol if rms else 0.0):
            return Honest(rms, self._error)
        scale = self._size.clamp_min(rms or 1.0)
        limit = ceiling(scale, expected, rule, rms, self._error)
        share = OWN_ERROR_FACTOR * self._worst / limit
        if not bool((share > 1.0).any()):
            return Honest(rms, self._error)
        undecided = share > 1.0 / _ALIKE
        place = int(share.argmax())
        found, allowed = float(self._worst.flatten()[place]), float(limit.flatten()[place])
        error = self._error
        if rule.made_up:
            # The lucky ones count: what is compared may be as imprecise.
            error = figures_of(self._worst.masked_fill(share > 1.0, 0.0), self._size, rms)
        reach = float(self._worst[undecided].max())
        because = f"rounding alone moves the reference by {found:.2g} there, of {allowed:.2g} that is allowed"
        if not rule.made_up:
            enough = float(((OWN_ERROR_FACTOR * self._worst - rule.atol) / scale).max())
            because += f"; rtol = {enough:.2g} would do" if enough < 1.0 else ""
        return Honest(rms, error, undecided, reach, because)


def honest_of(expected: Expected, rule: EqualityRule) -> Honest:
    """What the reference is off by."""
    return Evaluations(expected).conclude(rule)


def ceiling(
    scale: torch.Tensor, expected: Expected, rule: EqualityRule, rms: float, own: OwnError
) -> torch.Tensor:
    """The contract's ceiling for each element, never below the rounding that honest programs cannot avoid.

    That is the rounding to the output's own type, and, as far as the reference's own error shows it, to the
    least precise type that the forward computes in, or to the format that its convolutions may use.
    """
    largest = peak_of(only(expected.oracle, expected.oracle.isfinite()))
    contract = (scale * (rule.rtol if rms else 0.0)).add_(rule.atol)
    contract.clamp_min_(dtype_eps(expected.reference.dtype) * largest)
    shown = OWN_ERROR_FACTOR * own.largest * scale
    # Tensor cores cut operands off, which is a bias: many layers make more of it than of roundings.
    operands = FLOOR_FACTOR * expected.rounding.conv_eps(rule.conv_precision)
    return contract.maximum(shown.clamp_max_(max(OWN_ERROR_FACTOR * rule.narrowest, operands) * largest))
