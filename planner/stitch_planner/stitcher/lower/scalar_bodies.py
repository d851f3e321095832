"""Building and reading scalar bodies: SSA with common values shared and constants folded."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from stitch_planner.stitcher.lower.kernel_ir import Access, Instr, Scalar

Level = int
"""0: one value for the whole kernel or row, 1: one for each element of the reduced dims."""

FLOATS = ("float32", "float64")
RANK: dict[Scalar, int] = {"bool": 0, "uint8": 1, "int32": 2, "int64": 3, "float32": 4, "float64": 5}
"""Order of types in promotion (the few that kernels know)."""

# fmt: off
COSTLY = frozenset(
    (
        "exp", "expm1", "log", "log1p", "tanh", "erf", "erfc", "sigmoid", "silu", "gelu_erf", "gelu_tanh",
        "softplus", "log_sigmoid", "mish", "elu", "pow", "sin", "cos", "tan", "asin", "acos", "atan",
        "sinh", "cosh", "atan2", "fmod", "remainder", "exp2", "log2", "log10", "rsqrt", "sqrt", "div",
        "reciprocal", "floor_divide",
    )
)
# fmt: on
"""Functions worth keeping the result of rather than computing it again in a later pass."""


@dataclass
class BodyBuilder:
    """A body under construction. Equal instructions are emitted once."""

    instrs: list[Instr] = field(default_factory=list[Instr])
    loads: list[Access] = field(default_factory=list[Access])
    _seen: dict[Instr, int] = field(default_factory=dict[Instr, int])

    def load(self, access: Access) -> int:
        """Position of the value read through `access`."""
        if access not in self.loads:
            self.loads.append(access)
        return self._add(Instr("load", (), access.buffer.dtype, self.loads.index(access)))

    def const(self, value: float | int | bool, dtype: Scalar) -> int:
        """Position of a constant."""
        # Constants are kept as text: repr() gives the shortest decimal that reads back as the same float.
        if dtype in FLOATS:
            return self._add(Instr("const", (), dtype, repr(float(value))))
        if dtype == "bool":
            return self._add(Instr("const", (), dtype, bool(value)))
        return self._add(Instr("const", (), dtype, _wrapped(int(value), dtype)))

    def index(self, axis: int) -> int:
        """Position of the index along `axis` of the iteration space."""
        return self._add(Instr("index", (), "int32", axis))

    def op(self, name: str, args: tuple[int, ...], dtype: Scalar) -> int:
        """Position of a function's result."""
        return self._add(Instr(name, args, dtype))

    def reduce(self, kind: str, arg: int) -> int:
        """Position of a reduction over all inner dims; it has its operand's type."""
        return self._add(Instr("reduce", (arg,), self.dtype(arg), kind))

    def cast(self, value: int, dtype: Scalar) -> int:
        """The value as another type; itself where it has that type."""
        instr = self.instrs[value]
        if instr.dtype == dtype:
            return value
        if instr.op == "const" and instr.value is not None:
            constant = instr.value if isinstance(instr.value, int) else float(instr.value)
            return self.const(constant, dtype)
        if dtype == "uint8" and instr.dtype in FLOATS:
            value = self.op("cast", (value,), "int64")  # C++ leaves the cast of -1.0f undefined
        return self.op("cast", (value,), dtype)

    def dtype(self, value: int) -> Scalar:
        """Type of a value."""
        return self.instrs[value].dtype

    def promote(self, values: tuple[int, ...]) -> tuple[tuple[int, ...], Scalar]:
        """The values in their widest type, and that type."""
        widest = self.dtype(max(values, key=lambda v: RANK[self.dtype(v)]))
        return tuple(self.cast(v, widest) for v in values), widest

    # The four operations, in the operands' common type.
    def add(self, a: int, b: int) -> int:
        """A + b."""
        return self._binary("add", a, b)

    def sub(self, a: int, b: int) -> int:
        """A - b."""
        return self._binary("sub", a, b)

    def mul(self, a: int, b: int) -> int:
        """A * b."""
        return self._binary("mul", a, b)

    def div(self, a: int, b: int) -> int:
        """A / b."""
        return self._binary("div", a, b)

    def scaled(self, a: int, factor: float) -> int:
        """A value times a constant of its own type."""
        return self.mul(a, self.const(factor, self.dtype(a)))

    def _binary(self, name: str, a: int, b: int) -> int:
        args, dtype = self.promote((a, b))
        return self.op(name, args, dtype)

    def _add(self, instr: Instr) -> int:
        # Instructions are values, so equal ones are one: a norm's mean that variance and result need is
        # computed once.
        index = self._seen.get(instr)
        if index is None:
            index = len(self.instrs)
            self.instrs.append(instr)
            self._seen[instr] = index
        return index


def levels(instrs: tuple[Instr, ...], varies: tuple[bool, ...], inner_from: int) -> list[Level]:
    """Level of each instruction. `varies[i]`: load i differs in a row; axes from `inner_from` are inner."""
    levels_of_values: list[Level] = []
    for instr in instrs:
        if instr.op == "load":
            levels_of_values.append(int(varies[_number(instr)]))
        elif instr.op == "index":
            levels_of_values.append(int(_number(instr) >= inner_from))
        elif instr.op in ("reduce", "const"):
            levels_of_values.append(0)
        else:
            levels_of_values.append(max((levels_of_values[arg] for arg in instr.args), default=0))
    return levels_of_values


def needed(instrs: Sequence[Instr], roots: Sequence[int], stop: Collection[int] = ()) -> list[int]:
    """Instructions that `roots` need, in order, without looking below reductions and those in `stop`."""
    marked: set[int] = set()
    stack = list(roots)
    while stack:
        here = stack.pop()
        if here in marked:
            continue
        marked.add(here)
        # What a reduction reads is computed in the pass before, not where its result is used.
        if instrs[here].op != "reduce" and here not in stop:
            stack.extend(instrs[here].args)
    return sorted(marked)


def weight(instrs: tuple[Instr, ...]) -> int:
    """Rough vector operations for one element: 1 for arithmetic, 12 for an exponential and the like."""
    free = {"load", "const", "cast", "index"}
    return sum(0 if i.op in free else 12 if i.op in COSTLY else 1 for i in instrs)


def _wrapped(value: int, dtype: Scalar) -> int:
    """The integer as its type holds it: 255 for -1 among bytes, as torch computes with a Python number."""
    if dtype == "uint8":
        return value % 2**8
    half = 2**31 if dtype == "int32" else 2**63
    return (value + half) % (2 * half) - half


def _number(instr: Instr) -> int:
    assert isinstance(instr.value, int)
    return instr.value
