"""Scalar instructions as CUDA C++: types, operators, functions of stitch/common/math.h."""

import math
from collections.abc import Callable

from stitch_planner.stitcher.ir import Instr, Scalar

VALUE_TYPES: dict[Scalar, str] = {
    "float32": "float",
    "float64": "double",
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "bool",
    "uint8": "uint8_t",
}
"""Type of a value in a register."""

MEMORY_TYPES: dict[Scalar, str] = {**VALUE_TYPES, "bool": "stitch::boolean"}
"""Type of an element in memory."""

_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "logical_and": "&&",
    "logical_or": "||",
}
_REDUCTIONS = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min"}


def constant(instr: Instr) -> str:
    """A constant as a C++ expression of exactly its type."""
    value = instr.value
    if instr.dtype == "bool":
        return "true" if value else "false"
    if instr.dtype in ("float32", "float64"):
        number = float(value if value is not None else 0.0)
        suffix = "f" if instr.dtype == "float32" else ""
        if math.isnan(number):
            return f"stitch::cuda::kNaN<{VALUE_TYPES[instr.dtype]}>"
        if math.isinf(number):
            return f"{'-' if number < 0 else ''}stitch::cuda::kInfinity<{VALUE_TYPES[instr.dtype]}>"
        return f"{number!r}{suffix}"
    if instr.dtype == "int64":
        return f"int64_t{{{value}}}"
    return f"{VALUE_TYPES[instr.dtype]}{{{value}}}"


def expression(instr: Instr, name: Callable[[int], str]) -> str:
    """The right-hand side of an arithmetic instruction; `name` gives an operand's text."""
    args = [name(arg) for arg in instr.args]
    result = VALUE_TYPES[instr.dtype]
    if instr.op == "cast":
        return f"{args[0]} != 0" if instr.dtype == "bool" else f"static_cast<{result}>({args[0]})"
    if instr.op == "neg":
        return f"-{args[0]}"
    if instr.op == "logical_not":
        return f"!{args[0]}"
    if instr.op in _OPERATORS:
        return f"{args[0]} {_OPERATORS[instr.op]} {args[1]}"
    return f"stitch::math::{instr.op}({', '.join(args)})"


def reduction(instr: Instr) -> str:
    """The running total of a `reduce` instruction as a type of stitch/cuda/reduce.cuh."""
    return f"stitch::cuda::{_REDUCTIONS[str(instr.value)]}<{VALUE_TYPES[instr.dtype]}>"
