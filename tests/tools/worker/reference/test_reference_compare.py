"""The equality rule: what counts as equal, and what is said where something is not."""

import math

import pytest
import torch

from stitch_tools.worker.reference.compare import OutputComparison, compare_output
from stitch_tools.worker.reference.decision_margins import Margins
from stitch_tools.worker.reference.rounding_allowance import EqualityRule, Expected, honest_of
from stitch_tools.worker.reference.rounding_depth import Rounding

RULE = EqualityRule(rtol=1e-3, atol=1e-5)
FP32 = Rounding(eps=2.0**-23, length=64)


def expected(
    truth: torch.Tensor,
    own_error: float = 1e-6,
    rounding: Rounding = FP32,
    margin: torch.Tensor | None = None,
) -> Expected:
    generator = torch.Generator().manual_seed(5)
    reference = truth + own_error * torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    return Expected("0", reference.float(), truth, rounding, margin)


def truth(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def compare(actual: torch.Tensor, row: Expected, rule: EqualityRule = RULE) -> OutputComparison:
    return compare_output(actual, row, rule)


def test_the_reference_itself_and_the_oracle_rounded_are_equal() -> None:
    row = expected(truth(32, 48))
    assert compare(row.reference, row).problem is None
    assert compare(row.oracle.float(), row).problem is None


def test_an_error_is_judged_against_four_times_the_reference_s_own() -> None:
    row = expected(truth(64, 48), own_error=1e-5)
    own = compare(row.reference, row)
    assert own.bound == pytest.approx(4 * (own.reference_error or 0))
    noise = torch.randn(64, 48, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    assert compare((row.oracle + 2e-5 * noise).float(), row).problem is None
    wrong = compare((row.oracle + 1e-4 * noise).float(), row)
    assert wrong.problem is not None
    assert wrong.max_error is not None
    assert wrong.worst_index is not None
    assert float(row.oracle[wrong.worst_index]) == wrong.expected


@pytest.mark.parametrize("size", [1e-5, 1e-3])
def test_the_figures_of_a_verdict_are_enough_to_repeat_it(size: float) -> None:
    row = expected(4 * truth(16, 9))
    noise = torch.randn(16, 9, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    actual = (row.oracle + size * noise).float()
    found = compare(actual, row)
    assert found.rms == pytest.approx(float(row.oracle.square().mean().sqrt()))
    assert found.floor == FP32.floor("fp32", "fp32")
    assert found.worst_index is not None
    assert found.bound is not None
    scale = row.oracle.abs().clamp_min(found.rms or 0)
    distance = (actual.double() - row.oracle).abs()
    own = (row.reference.double() - row.oracle).abs()
    assert found.max_error == pytest.approx(float((distance / scale)[found.worst_index]))
    assert found.reference_error == pytest.approx(float((own / scale).max()))
    assert found.rms_error == pytest.approx(float(distance.square().mean().sqrt()) / (found.rms or 1))
    s = float(scale[found.worst_index])
    ceiling = (RULE.atol + RULE.rtol * s) / s
    assert found.bound == pytest.approx(min(ceiling, max(4 * (found.reference_error or 0), found.floor or 0)))
    assert (found.problem is None) == ((found.max_error or 0) <= found.bound)


def test_a_reference_that_is_exact_by_luck_leaves_the_floor() -> None:
    row = expected(truth(1), own_error=0.0, rounding=Rounding(eps=2.0**-23, length=100))
    assert compare(row.oracle.float() * (1 + 1e-5), row).problem is None
    assert compare(row.oracle.float() * (1 + 1e-4), row).problem is not None


def test_the_contract_is_a_ceiling_however_bad_the_reference_is() -> None:
    row = expected(truth(64, 48), own_error=1e-2)
    assert compare(row.reference, row).problem is not None
    assert compare(row.reference, row, EqualityRule(rtol=0.1, atol=0)).problem is None
    assert honest_of(row, RULE).undecided is not None
    assert honest_of(expected(truth(4, 4)), RULE).undecided is None


def test_where_convolutions_may_use_tf32_the_reference_s_own_error_bounds_those_behind_them() -> None:
    tf32 = EqualityRule(rtol=1e-3, atol=1e-5, conv_precision="tf32")
    row = expected(truth(64, 48), own_error=1e-3, rounding=Rounding(eps=2.0**-23, length=576, conv=1))
    noise = torch.randn(64, 48, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    another = (row.oracle + 1e-3 * noise).float()
    assert compare(another, row, tf32).problem is None
    assert honest_of(row, tf32).undecided is None
    assert compare(another, row).problem is not None
    # bf16 rounds eight times as much as TF32.
    assert compare((row.oracle + 8e-3 * noise).float(), row, tf32).problem is not None
    # Without a convolution on the way, the contract's ceiling stands.
    assert compare(another, expected(truth(64, 48), own_error=1e-3), tf32).problem is not None


def test_a_reference_that_is_only_noise_under_tf32_accepts_no_zeros() -> None:
    tf32 = EqualityRule(rtol=1e-3, atol=1e-5, conv_precision="tf32")
    row = expected(truth(64, 48), own_error=1.0, rounding=Rounding(eps=2.0**-23, length=576, conv=20))
    assert compare(torch.zeros(64, 48), row, tf32).problem is not None


def test_operands_in_tf32_count_once_for_each_convolution_and_not_for_each_term() -> None:
    one = Rounding(eps=2.0**-23, length=4608, conv=1)
    many = one.after(length=1, matmul=False, conv=True, function=False)
    assert one.floor("fp32", "tf32") == 16 * 2.0**-10
    assert many.floor("fp32", "tf32") == pytest.approx(16 * 2.0**-10 * 2**0.5)
    assert one.floor("fp32", "fp32") == 16 * 2.0**-23 * 4608**0.5
    assert Rounding(eps=2.0**-7, conv=1).conv_eps("tf32") == 0.0


def test_a_value_far_above_the_rms_may_be_off_by_rounding_of_itself() -> None:
    values = truth(64, 512) * 1e-3
    values[5, 7] = 1.0
    row = expected(values, own_error=0.0, rounding=Rounding(eps=2.0**-23, length=512))

    def peak_off_by(relative: float) -> OutputComparison:
        changed = row.oracle.clone()
        changed[5, 7] *= 1 + relative
        return compare(changed.float(), row)

    assert peak_off_by(2e-5).problem is None
    wrong = peak_off_by(1e-4)
    assert wrong.worst_index == (5, 7)
    assert wrong.max_error == pytest.approx(1e-4, rel=0.1)
    assert wrong.bound == pytest.approx(16 * 2.0**-23 * 512**0.5)


def test_the_ceiling_of_a_large_value_is_the_contract_s_for_its_size() -> None:
    values = truth(64, 512) * 1e-3
    values[5, 7] = 1.0
    row = expected(values, own_error=0.0, rounding=Rounding.unknown(torch.float32))
    for error, is_right in ((9e-4, True), (1.2e-3, False)):
        changed = row.oracle.clone()
        changed[5, 7] += error
        assert (compare(changed.float(), row).problem is None) is is_right


def test_an_error_hidden_in_a_small_row_is_found() -> None:
    values = truth(16, 64)
    values[3] *= 2e-2
    row = expected(values, own_error=0.0)
    damaged = row.oracle.clone()
    damaged[3] *= 1 + 3e-4
    verdict = compare(damaged.float(), row)
    assert verdict.max_error is not None
    assert verdict.bound is not None
    assert verdict.max_error < verdict.bound
    assert "last-axis slice" in (verdict.problem or "")


def test_an_error_everywhere_is_found_by_its_rms_though_each_is_small() -> None:
    row = expected(truth(256, 256), own_error=2e-5)
    verdict = compare((row.oracle * (1 + 1.5e-4)).float(), row, RULE)
    assert verdict.problem is not None
    assert verdict.problem.startswith("rms error")


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_have_to_be_the_same(odd: float) -> None:
    row = expected(truth(4, 5))
    spoiled = row.reference.clone()
    spoiled[2, 3] = odd
    verdict = compare(spoiled, row)
    assert verdict.worst_index == (2, 3)
    assert "where the reference has a number" in (verdict.problem or "")
    both = Expected("0", spoiled, spoiled.double(), FP32)
    assert compare(spoiled, both).problem is None
    assert compare(row.reference, both).problem is not None


def test_an_overflow_of_the_reference_that_the_oracle_lacks_may_be_kept_or_avoided() -> None:
    row = expected(truth(4, 5))
    reference = row.reference.clone()
    reference[0, 0] = math.inf
    row = Expected("0", reference, row.oracle, FP32)
    assert compare(reference, row).problem is None
    assert compare(row.oracle.float(), row).problem is None


def test_shape_and_type_are_compared_first() -> None:
    row = expected(truth(4, 5))
    assert compare(row.reference.t(), row).problem == "is float32[5, 4], expected float32[4, 5]"
    assert compare(row.reference.double(), row).problem == "is float64[4, 5], expected float32[4, 5]"


def test_empty_and_scalar_outputs_compare() -> None:
    assert compare(torch.zeros(0, 3), expected(truth(0, 3))).problem is None
    row = expected(truth())
    assert compare(row.reference, row).problem is None
    assert compare(row.reference + 1, row).worst_index == ()


def test_an_output_of_zeros_is_bounded_absolutely() -> None:
    row = expected(torch.zeros(4, 4, dtype=torch.float64), own_error=0.0)
    assert compare(torch.zeros(4, 4), row).problem is None
    assert compare(torch.full((4, 4), 1e-4), row).problem is not None


def test_noise_below_atol_counts_as_zero_on_drawn_inputs_only() -> None:
    row = expected(torch.full((8, 32), 1e-12, dtype=torch.float64), own_error=0.0)
    noisy = torch.full((8, 32), 1e-7)
    assert compare(noisy, row, EqualityRule(1e-3, 1e-5, structured=True)).problem is None
    assert compare(noisy, row).problem is not None


def test_an_output_in_bf16_may_be_rounded_to_bf16() -> None:
    values = truth(32, 32)
    row = Expected("0", values.bfloat16(), values, Rounding(eps=2.0**-7))
    assert compare(values.bfloat16(), row).problem is None
    assert compare((values * 1.05).bfloat16(), row).problem is not None


def test_complex_outputs_compare_by_their_parts() -> None:
    values = torch.complex(truth(8, 8), truth(8, 8) + 1)
    row = Expected("0", values.to(torch.complex64), values, FP32)
    assert compare(values.to(torch.complex64), row).problem is None
    assert compare(values.to(torch.complex64).conj().resolve_conj(), row).problem is not None


def test_discrete_outputs_are_equal_except_where_the_margin_is_below_the_error() -> None:
    values = torch.tensor([[3.0, 1.0, 3.0 - 1e-7], [1.0, 5.0, 2.0]], dtype=torch.float64)
    margins = Margins()
    index = values.argmax(1)
    margins.note("argmax", (values, 1), {}, index)
    row = Expected("0", index, index, FP32, margins.of(index))
    assert compare(index, row).problem is None
    assert compare(torch.tensor([2, 1]), row).problem is None
    verdict = compare(torch.tensor([2, 0]), row)
    assert verdict.problem == "1 of 2 values differ"
    assert verdict.worst_index == (1,)
    assert compare(torch.tensor([2, 1]), Expected("0", index, index, FP32)).problem is not None


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("topk", lambda x: torch.topk(x, 2, -1)),
        ("sort", lambda x: torch.sort(x, -1)),
        ("gt", lambda x: torch.gt(x, 1.0)),
        ("max", lambda x: torch.max(x, 1)),
    ],
)
def test_margins_are_the_distances_to_the_other_decision(name: str, call: object) -> None:
    x = torch.tensor([[4.0, 3.0, 1.0]], dtype=torch.float64)
    rms = float(x.square().mean().sqrt())
    arguments = {"topk": (x, 2, -1), "sort": (x, -1), "gt": (x, 1.0), "max": (x, 1)}[name]
    margins = Margins()
    out = call(x)  # pyright: ignore[reportCallIssue]
    margins.note(name, arguments, {}, out)
    result = out if isinstance(out, torch.Tensor) else out[1]
    found = margins.of(result)
    assert found is not None
    wanted = {"topk": [[1, 1]], "sort": [[2, 1, 1]], "gt": [[3, 2, 0]], "max": [1]}[name]
    assert (
        (found * rms).tolist() == pytest.approx(wanted)
        if name == "max"
        else torch.allclose(found * rms, torch.tensor(wanted, dtype=torch.float64))
    )
