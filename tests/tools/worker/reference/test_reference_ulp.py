"""Distances from the oracle in representable numbers."""

import pytest
import torch

from stitch_tools.models import ULP_BINS
from stitch_tools.worker.reference.ulp import ulp_histogram


def step(value: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(abs(count)):
        value = torch.nextafter(value, torch.tensor(float("inf") if count > 0 else float("-inf")))
    return value


def test_each_distance_has_its_bin() -> None:
    one = torch.ones(())
    values = [step(one, count) for count in (0, 1, -2, 3, 4, -5, 16, 17, 256, 257)]
    values += [torch.tensor(7.0), torch.tensor(float("nan"))]
    oracle = torch.ones(len(values), dtype=torch.float64)
    found = ulp_histogram(torch.stack(values), oracle)
    assert found is not None
    assert dict(zip(ULP_BINS, found, strict=True)) == {
        "0": 1, "1": 1, "2": 1, "3-4": 2, "5-16": 2, "17-256": 2, "more": 2, "non-finite": 1,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zero_lies_between_the_smallest_numbers_of_both_signs(dtype: torch.dtype) -> None:
    tiny = torch.tensor([4, -4], dtype=dtype) * torch.finfo(dtype).smallest_normal
    zeros = torch.tensor([0.0, -0.0], dtype=dtype)
    assert ulp_histogram(zeros, torch.zeros(2, dtype=torch.float64)) == (2, 0, 0, 0, 0, 0, 0, 0)
    far = ulp_histogram(tiny, -tiny.double())
    assert far is not None
    assert far[6] == 2


def test_the_ends_of_fp64_are_far_apart_and_do_not_wrap_around() -> None:
    largest = torch.finfo(torch.float64).max
    values = torch.tensor([largest, 0.0], dtype=torch.float64)
    oracle = torch.tensor([-largest, largest], dtype=torch.float64)
    assert ulp_histogram(values, oracle) == (0, 0, 0, 0, 0, 0, 2, 0)


def test_the_oracle_is_rounded_to_the_output_s_type_first() -> None:
    oracle = torch.randn(64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert ulp_histogram(oracle.to(dtype), oracle) == (64, 0, 0, 0, 0, 0, 0, 0)
    assert ulp_histogram(oracle.to(torch.complex64), oracle.to(torch.complex128)) == (128, *[0] * 7)
    assert ulp_histogram(torch.ones(3, dtype=torch.int64), oracle[:3]) is None
