"""Splits the body of a kernel with reductions into the functions that its struct needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stitch_planner.stitcher.emit.cpu.value_text import ValueText
from stitch_planner.stitcher.emit.scalar_text import CPP, VALUE_TYPES, reducer
from stitch_planner.stitcher.lower.kernel_ir import ColumnKernel, Instr, RowKernel
from stitch_planner.stitcher.lower.scalar_bodies import COSTLY, levels

MAX_KEPT_BYTES = 128 * 1024
"""Values kept between passes must fit beside the row in a core's second-level cache."""


@dataclass(frozen=True)
class Pass:
    """One reduction of a kernel with rows, or two sums at once."""

    reduce: str
    dtype: str
    term: list[str]
    finish: list[str]


class RowText(ValueText):
    """The text of begin, passes, apply and finish_row (see stitch/common/space.h)."""

    def __init__(self, kernel: RowKernel | ColumnKernel) -> None:
        super().__init__(kernel.body.instrs)
        count = len(kernel.outer)
        varies = tuple(any(access.strides[count:]) for access in kernel.loads)
        self.level = levels(self.instrs, varies, count)
        self.reductions = _paired(self.instrs, _pass_order(self.instrs))
        per_row = [not any(access.strides[count:]) for access in kernel.stores]
        stores = list(enumerate(kernel.body.results))
        self.element_stores = [(i, v) for i, v in stores if not per_row[i]]
        self.row_stores = [(i, v) for i, v in stores if per_row[i]]
        functions = [[self.instrs[r].args[0] for r in together] for together in self.reductions]
        # The last function stores; it can use what any pass kept.
        functions.append([v for _, v in self.element_stores])
        # How many floats for each element of a row fit into the scratch.
        room = MAX_KEPT_BYTES // max(4 * prod(kernel.inner), 1)
        self.kept = _plan_kept(self.instrs, self.level, functions, room)
        self.available: set[int] = set()
        self.used: set[int] = {v for _, v in self.row_stores}
        self._write(functions)

    @property
    def kept_count(self) -> int:
        """Values kept for each element."""
        return len(self.kept)

    def ref(self, value: int) -> str:
        """Values that are one for each row live in `row`."""
        if self.level[value] == 0 and self.instrs[value].op != "const":
            return f"row.{self.name(value)}"
        return super().ref(value)

    def _write(self, functions: list[list[int]]) -> None:
        bodies = [self._element_lines(roots) for roots in functions]
        row_values = self._row_values()
        stage = _stages(self.instrs, self.reductions)
        self.members = [f"{VALUE_TYPES[self.instrs[v].dtype]} {self.name(v)};" for v in row_values]
        self.begin = self._row_lines([v for v in row_values if stage[v] == 0])
        self.passes: list[Pass] = []
        for place, together in enumerate(self.reductions):
            finish = self._row_lines([v for v in row_values if stage[v] == place + 1])
            terms = [self.ref(self.instrs[reduction].args[0]) for reduction in together]
            returned = terms[0] if len(terms) == 1 else f"{{{', '.join(terms)}}}"
            reduce, dtype = _reducer(self.instrs[together[0]], len(together))
            self.passes.append(Pass(reduce, dtype, [*bodies[place], f"return {returned};"], finish))
        stores = [f"store<{i}>(at, {self.ref(v)});" for i, v in self.element_stores]
        self.apply = [*bodies[-1], *stores] if stores else []
        self.finish_row = [f"store<{i}>(at, {self.ref(v)});" for i, v in self.row_stores]

    def _element_lines(self, roots: list[int]) -> list[str]:
        """Lines that compute per-element `roots` from loads, kept values and the row's values."""
        wanted = self._wanted(roots)
        lines: list[str] = []
        for value in sorted(wanted):
            # An earlier pass wrote it: reading it back ends the recursion into its operands, see `_wanted`.
            if value in self.available:
                lines.append(f"const float {self.name(value)} = kept<{self.kept[value]}>(at);")
                continue
            lines.append(self.line(value))
            if value in self.kept:
                lines.append(f"keep<{self.kept[value]}>(at, {self.name(value)});")
        self.available |= wanted & self.kept.keys()
        return lines

    def _wanted(self, roots: list[int]) -> set[int]:
        wanted: set[int] = set()
        stack = list(roots)
        while stack:
            value = stack.pop()
            if value in wanted or self.instrs[value].op == "const":
                continue
            if self.level[value] == 0:
                self.used.add(value)
                continue
            wanted.add(value)
            if value not in self.available:
                stack.extend(self.instrs[value].args)
        return wanted

    def _row_values(self) -> list[int]:
        """Per-row values that anything needs, in order; constants stand for themselves."""
        row_values: set[int] = set()
        stack = [*self.used, *(r for together in self.reductions for r in together)]
        while stack:
            value = stack.pop()
            if value in row_values or self.instrs[value].op == "const":
                continue
            row_values.add(value)
            if self.instrs[value].op != "reduce":
                stack.extend(self.instrs[value].args)
        # In SSA order, so that each value stands behind those that it is computed from.
        return sorted(row_values)

    def _row_lines(self, values: list[int]) -> list[str]:
        lines: list[str] = []
        for value in values:
            instr = self.instrs[value]
            text = self._total(value) if instr.op == "reduce" else self.expression(instr)
            lines.append(f"row.{self.name(value)} = {text};")
        return lines

    def _total(self, reduction: int) -> str:
        """Where `finish` finds the reduction's result."""
        together = next(group for group in self.reductions if reduction in group)
        if len(together) == 1:
            return "total"
        return "total.first" if reduction == together[0] else "total.second"


def _depths(instrs: tuple[Instr, ...]) -> list[int]:
    """How many reductions lie one behind another up to each instruction."""
    depth: list[int] = []
    for instr in instrs:
        depth.append(max((depth[arg] for arg in instr.args), default=0) + (instr.op == "reduce"))
    return depth


def _pass_order(instrs: tuple[Instr, ...]) -> list[int]:
    """Reductions, each behind those that it depends on."""
    depth = _depths(instrs)
    # By depth first: reductions that need the same earlier passes stand side by side, and `_paired` can join
    # them.
    return sorted((i for i, instr in enumerate(instrs) if instr.op == "reduce"), key=lambda i: (depth[i], i))


def _paired(instrs: tuple[Instr, ...], order: list[int]) -> list[tuple[int, ...]]:
    """The reductions of each pass: two float sums that need the same passes before them share one."""
    depth = _depths(instrs)
    passes: list[tuple[int, ...]] = []
    for place in order:
        before = passes[-1] if passes else ()
        alike = all(_is_float_sum(instrs[p]) and depth[p] == depth[place] for p in (*before, place))
        # Two, not more: TwoSums holds a pair. Mean and mean of squares are the case that matters.
        if len(before) == 1 and alike:
            passes[-1] = (*before, place)
        else:
            passes.append((place,))
    return passes


def _is_float_sum(instr: Instr) -> bool:
    return instr.value == "sum" and instr.dtype == "float32"


def _reducer(instr: Instr, count: int) -> tuple[str, str]:
    """Types of a pass's reduction and of its total."""
    kind = VALUE_TYPES[instr.dtype]
    return (reducer(instr, CPP), kind) if count == 1 else (f"TwoSums<{kind}>", f"Two<{kind}>")


def _stages(instrs: tuple[Instr, ...], passes: list[tuple[int, ...]]) -> list[int]:
    """How many passes must be over before each value can be computed."""
    order = {value: place + 1 for place, together in enumerate(passes) for value in together}
    stage: list[int] = []
    for place, instr in enumerate(instrs):
        stage.append(order.get(place) or max((stage[arg] for arg in instr.args), default=0))
    return stage


def _plan_kept(
    instrs: tuple[Instr, ...], level: Sequence[int], functions: list[list[int]], room: int
) -> dict[int, int]:
    """Per-element values to keep between passes: the outermost ones that cost more than a load."""
    kept: dict[int, int] = {}
    earlier: set[int] = set()
    for roots in functions:
        here: set[int] = set()
        stack = list(roots)
        while stack:
            value = stack.pop()
            if value in here or level[value] == 0:
                continue
            # A value that a later function needs again and that is kept stops the walk: its operands are not
            # needed there.
            if value in earlier and (value in kept or (len(kept) < room and _is_worth(instrs, level, value))):
                kept.setdefault(value, len(kept))
                continue
            here.add(value)
            stack.extend(instrs[value].args)
        earlier |= here
    return kept


def _is_worth(instrs: tuple[Instr, ...], level: Sequence[int], value: int) -> bool:
    """Whether computing a per-element value again costs clearly more than reading it back."""
    # The scratch holds floats.
    if instrs[value].dtype != "float32":
        return False
    visited: set[int] = set()
    stack = [value]
    while stack:
        here = stack.pop()
        if here not in visited and level[here]:
            visited.add(here)
            stack.extend(instrs[here].args)
    # One load and cheap arithmetic are as fast as reading the kept value back; more than one load is not.
    costly = any(instrs[i].op in COSTLY for i in visited)
    return costly or sum(instrs[i].op == "load" for i in visited) > 1
