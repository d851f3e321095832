"""Whether wrong outputs are what products in a coarser format give, and which contract allows them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from stitch_tools.worker.reference.compare import compare_output
from stitch_tools.worker.reference.error_distance import distance_of, rms_of
from stitch_tools.worker.reference.rounding_allowance import EqualityRule, Expected
from stitch_tools.worker.reference.rounding_depth import coarser_formats

# Beside the rms error of one sample: operands that are cut off are 2.5 times as far off as rounded ones, and
# those of the next format 8 times.
_LEAST, _MOST = 1 / 3, 8.0
_WIDER = (1e-2, 3e-2, 1e-1)
# The next check draws other values, whose largest error is up to 1.3 times as large: half of it has to do.
_MARGIN = 2.0

WrongOutput = tuple[torch.Tensor, Expected]
Sample = Callable[[tuple[str, str]], Mapping[str, torch.Tensor]]
"""What the reference gives with operands rounded to these formats of matrix products and convolutions."""


@dataclass(frozen=True)
class CoarserProducts:
    """What a contract would have to allow."""

    allow: str
    """In the words of `--allow`: matmul=tf32."""
    rtol: float | None
    """Of which half would make the outputs right; None: none that was tried would."""


def coarser_products(
    wrong: Sequence[WrongOutput], rule: EqualityRule, sample: Sample
) -> CoarserProducts | None:
    """The most precise format whose products explain all of the wrong outputs; None where none does."""
    allowed = {"matmul": rule.matmul_precision, "conv": rule.conv_precision}
    used = [kind for kind in allowed if any(getattr(row.rounding, kind) for _, row in wrong)]
    if not used or not all(_is_comparable(*pair) for pair in wrong):
        return None
    for name in coarser_formats([allowed[kind] for kind in used]):
        formats = {kind: name if kind in used else allowed[kind] for kind in allowed}
        try:
            values = sample((formats["matmul"], formats["conv"]))
        except Exception:  # foreign code that refuses numbers which differ by a bit explains nothing
            return None
        if all(_is_alike(value, row, values[row.name]) for value, row in wrong):
            coarse = replace(rule, matmul_precision=formats["matmul"], conv_precision=formats["conv"])
            tried = (max(rtol, rule.rtol) for rtol in (rule.rtol, *_WIDER))
            rtol = next(
                (rtol for rtol in tried if _passes(wrong, replace(coarse, rtol=rtol / _MARGIN))), None
            )
            return CoarserProducts(",".join(f"{kind}={name}" for kind in used), rtol)
    return None


def _is_comparable(value: torch.Tensor, row: Expected) -> bool:
    return value.shape == row.oracle.shape and value.is_floating_point() and bool(value.numel())


def _is_alike(value: torch.Tensor, row: Expected, sample: torch.Tensor) -> bool:
    """Whether the error is about as large as that of the sample."""
    oracle = row.oracle
    usable = value.isfinite() & oracle.isfinite() & sample.isfinite()
    error, expected = (
        rms_of(distance_of(each, oracle, usable)) for each in (value, sample.to(oracle.device))
    )
    return _LEAST * expected < error < _MOST * expected


def _passes(wrong: Sequence[WrongOutput], rule: EqualityRule) -> bool:
    rows = (compare_output(value, replace(row, honest=None), rule) for value, row in wrong)
    return all(row.problem is None for row in rows)
