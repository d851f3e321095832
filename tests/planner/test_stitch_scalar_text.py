"""Scalars as text: what both languages share, and where they differ."""

import pytest

from stitch_planner.stitcher.emit.scalar_text import CPP, CUDA, Dialect, constant, expression, literal
from stitch_planner.stitcher.lower.kernel_ir import Instr


@pytest.mark.parametrize("dialect", [CPP, CUDA])
def test_numbers_have_exactly_their_type(dialect: Dialect) -> None:
    assert literal("1e-05", "float32", dialect) == "1e-05f"
    assert literal(2, "float64", dialect) == "2.0"
    assert literal(True, "bool", dialect) == "true"
    assert literal(-100, "int64", dialect) == "int64_t{-100}"
    assert literal(-(2**63), "int64", dialect) == "int64_t{-9223372036854775807 - 1}"


def test_what_is_not_finite_is_spelled_as_the_language_can() -> None:
    assert constant(Instr("const", dtype="float32", value="-inf"), CPP) == "-__builtin_inff()"
    assert constant(Instr("const", dtype="float32", value="-inf"), CUDA) == "-stitch::cuda::kInfinity<float>"
    assert constant(Instr("const", dtype="float64", value="nan"), CPP) == '__builtin_nan("")'
    assert constant(Instr("const", dtype="float64", value="nan"), CUDA) == "stitch::cuda::kNaN<double>"


@pytest.mark.parametrize("dialect", [CPP, CUDA])
def test_the_negative_of_a_negative_number_is_no_decrement(dialect: Dialect) -> None:
    negated = Instr("neg", (0,), "float32")
    assert expression(negated, lambda _: "-1.0f", dialect) == "-(-1.0f)"
    assert expression(negated, lambda _: "v3", dialect) == "-v3"
