"""Scalar values of a body as C++ text."""

from stitch_planner.stitcher.ir import Instr

CPP_TYPE = {
    "float32": "float",
    "float64": "double",
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "bool",
    "uint8": "uint8_t",
}
STORED_TYPE = {**CPP_TYPE, "bool": "stitch::boolean"}
INFIX = {
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


class ValueText:
    """Names and text of scalar values."""

    def __init__(self, instrs: tuple[Instr, ...]) -> None:
        self.instrs = instrs

    def name(self, value: int) -> str:
        """C++ name of a value."""
        return f"v{value}"

    def ref(self, value: int) -> str:
        """How a later expression mentions a value: constants stand for themselves."""
        instr = self.instrs[value]
        return literal(instr) if instr.op == "const" else self.name(value)

    def line(self, value: int) -> str:
        """Declaration of a value."""
        instr = self.instrs[value]
        return f"const {CPP_TYPE[instr.dtype]} {self.name(value)} = {self.expression(instr)};"

    def expression(self, instr: Instr) -> str:
        """An instruction as a C++ expression over the names of its operands."""
        args = [self.ref(arg) for arg in instr.args]
        if instr.op == "load":
            return f"load<{instr.value}>(at)" + (" != 0" if instr.dtype == "bool" else "")
        if instr.op == "index":
            return f"index<{instr.value}>(at)"
        if instr.op in INFIX:
            return f"{args[0]} {INFIX[instr.op]} {args[1]}"
        if instr.op == "cast":
            return f"static_cast<{CPP_TYPE[instr.dtype]}>({args[0]})"
        if instr.op == "neg":
            return f"-{args[0]}"
        if instr.op == "logical_not":
            return f"!{args[0]}"
        return f"math::{instr.op}({', '.join(args)})"


def literal(instr: Instr) -> str:
    """A constant as C++ text."""
    text = str(instr.value)
    if instr.dtype in ("float32", "float64"):
        suffix = "f" if instr.dtype == "float32" else ""
        special = {"inf": f"__builtin_inf{suffix}()", "-inf": f"-__builtin_inf{suffix}()"}
        return special.get(text) or (f'__builtin_nan{suffix}("")' if text == "nan" else f"{text}{suffix}")
    if instr.dtype == "bool":
        return "true" if instr.value else "false"
    return f"int64_t{{{text}}}" if instr.dtype == "int64" else f"{CPP_TYPE[instr.dtype]}{{{text}}}"
