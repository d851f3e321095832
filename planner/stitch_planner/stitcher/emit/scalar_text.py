"""Scalar instructions as text. C++ and CUDA spell them alike but for a few names, which are a `Dialect`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stitch_planner.stitcher.lower.kernel_ir import Instr, Scalar

VALUE_TYPES: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "bool",
    "uint8": "uint8_t",
}
"""Type of a value in a register."""

MEMORY_TYPES: Mapping[str, str] = {**VALUE_TYPES, "bool": "stitch::boolean"}
"""Type of an element in memory."""

_INFIX = {
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
_REDUCERS = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min"}


@dataclass(frozen=True)
class Dialect:
    """The names that differ between the languages."""

    functions: str
    """Namespace of stitch/common/math.h as a prefix."""
    reducers: str
    """Namespace of `Sum` and its kin as a prefix."""
    infinity: Mapping[str, str]
    """Positive infinity by type."""
    nan: Mapping[str, str]
    """A quiet NaN by type."""


CPP = Dialect(
    functions="math::",
    reducers="",
    infinity={"float32": "__builtin_inff()", "float64": "__builtin_inf()"},
    nan={"float32": '__builtin_nanf("")', "float64": '__builtin_nan("")'},
)
# The compiler's builtins are host functions; device code has constants of its own instead.
CUDA = Dialect(
    functions="stitch::math::",
    reducers="stitch::cuda::",
    infinity={name: f"stitch::cuda::kInfinity<{VALUE_TYPES[name]}>" for name in ("float32", "float64")},
    nan={name: f"stitch::cuda::kNaN<{VALUE_TYPES[name]}>" for name in ("float32", "float64")},
)


def literal(value: float | int | bool | str | None, dtype: Scalar, dialect: Dialect) -> str:
    """A number as an expression of exactly its type. The IR holds floating-point numbers as their `repr`."""
    if dtype in ("float32", "float64"):
        number = float(value if value is not None else 0.0)
        if math.isnan(number):
            return dialect.nan[dtype]
        if math.isinf(number):
            return f"{'-' if number < 0 else ''}{dialect.infinity[dtype]}"
        return f"{number!r}{'f' if dtype == 'float32' else ''}"
    if dtype == "bool":
        return "true" if value else "false"
    if value == -(2**63):  # C++ reads a minus and a number, and that number is too large for int64_t
        return f"int64_t{{{-(2**63) + 1} - 1}}"
    return f"{VALUE_TYPES[dtype]}{{{value}}}"


def constant(instr: Instr, dialect: Dialect) -> str:
    """The number of a `const` instruction."""
    return literal(instr.value, instr.dtype, dialect)


def expression(instr: Instr, operand: Callable[[int], str], dialect: Dialect) -> str:
    """The right-hand side of an arithmetic instruction; `operand` gives the text of a value."""
    args = [operand(arg) for arg in instr.args]
    if instr.op in _INFIX:
        return f"{args[0]} {_INFIX[instr.op]} {args[1]}"
    if instr.op == "cast":
        return f"static_cast<{VALUE_TYPES[instr.dtype]}>({args[0]})"
    if instr.op == "neg":  # of a negative constant, "--1.0f" would be a decrement
        return f"-({args[0]})" if args[0].startswith("-") else f"-{args[0]}"
    if instr.op == "logical_not":
        return f"!{args[0]}"
    return f"{dialect.functions}{instr.op}({', '.join(args)})"


def reducer(instr: Instr, dialect: Dialect) -> str:
    """The type of a `reduce` instruction's running total."""
    return f"{dialect.reducers}{_REDUCERS[str(instr.value)]}<{VALUE_TYPES[instr.dtype]}>"
