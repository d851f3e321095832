"""Values of a body in the kernel structs of stitch/common/space.h: how they are named, declared and read."""

from stitch_planner.stitcher.emit.scalar_text import CPP, VALUE_TYPES, constant, expression
from stitch_planner.stitcher.lower.kernel_ir import Instr


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
        return constant(instr, CPP) if instr.op == "const" else self.name(value)

    def line(self, value: int) -> str:
        """Declaration of a value."""
        instr = self.instrs[value]
        return f"const {VALUE_TYPES[instr.dtype]} {self.name(value)} = {self.expression(instr)};"

    def expression(self, instr: Instr) -> str:
        """An instruction as a C++ expression over the names of its operands."""
        if instr.op == "load":
            return f"load<{instr.value}>(at)" + (" != 0" if instr.dtype == "bool" else "")
        if instr.op == "index":
            return f"index<{instr.value}>(at)"
        return expression(instr, self.ref, CPP)
