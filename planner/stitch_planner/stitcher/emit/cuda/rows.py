"""Row and column kernels as classes: the F of stitch/cuda/rows.cuh and columns.cuh."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from stitch_planner.stitcher.emit.cuda.lines import Lines, instructions, loaded, number_of, open_class, stored
from stitch_planner.stitcher.emit.cuda.operands import (
    address,
    coordinates,
    dims_used,
    element,
    group_type,
    load_text,
    offset,
    pointers,
    store_text,
)
from stitch_planner.stitcher.emit.cuda.schedule import index_type, vector_width
from stitch_planner.stitcher.emit.scalar_text import CUDA, VALUE_TYPES, constant, expression, reducer
from stitch_planner.stitcher.lower.kernel_ir import SCALAR_BYTES, Access, ColumnKernel, Instr, RowKernel
from stitch_planner.stitcher.lower.scalar_bodies import levels, needed


@dataclass(frozen=True)
class RowClass:
    """The class of a row or column kernel, and the numbers that its launch needs."""

    kernel: RowKernel | ColumnKernel

    @cached_property
    def space(self) -> tuple[int, ...]:
        """All dims, outer ones first."""
        return (*self.kernel.outer, *self.kernel.inner)

    @cached_property
    def vector(self) -> int:
        """Neighbours that a thread takes."""
        if isinstance(self.kernel, ColumnKernel):
            # Threads of a column kernel lie side by side along the columns already, so that loads of a warp
            # are contiguous.
            return 1
        moving = [a for a in (*self.kernel.loads, *self.kernel.stores) if self._varies(a)]
        whole = [Access(a.buffer, a.strides, a.offset) for a in moving]
        return vector_width(self.space, whole)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return prod(self.kernel.outer)

    @property
    def length(self) -> int:
        """Elements of one row."""
        return prod(self.kernel.inner)

    @cached_property
    def cell_bytes(self) -> int:
        """Bytes of an element's operands that passes share."""
        return sum(SCALAR_BYTES[self.kernel.loads[n].buffer.dtype] for n in self._shared_loads)

    @property
    def reads_again(self) -> bool:
        """Whether operands are needed once more after the first pass."""
        return self._passes > 1 or bool(self._element_stores)

    def text(self) -> str:
        """The class as CUDA C++."""
        kernel = self.kernel
        out = Lines()
        open_class(out, kernel.name, kernel.comment, pointers(kernel.loads, kernel.stores))
        accesses = (*kernel.loads, *kernel.stores)
        out.add(f"using Index = {index_type(self.space, accesses)};")
        out.add(f"static constexpr Index kRows = {self.rows}, kLength = {self.length};")
        out.add(f"static constexpr int kVector = {self.vector}, kPasses = {self._passes};", "")
        self._row_struct(out)
        self._cells_struct(out)
        totals = ", ".join(self._totals_type(p) for p in range(self._passes))
        out.add("template <int P>", f"using Totals = stitch::cuda::Pick<P, {totals}>;", "")
        self._begin(out)
        self._load(out)
        self._take(out)
        self._finish(out)
        self._put(out)
        self._put_row(out)
        out.close("};")
        return "\n".join(out.lines)

    # ---- what is computed where -----------------------------------------------------------------------

    @property
    def _instrs(self) -> tuple[Instr, ...]:
        return self.kernel.body.instrs

    @cached_property
    def _levels(self) -> list[int]:
        varies = tuple(self._varies(access) for access in self.kernel.loads)
        return levels(self._instrs, varies, len(self.kernel.outer))

    @cached_property
    def _depths(self) -> list[int]:
        """How many reductions lie one behind another below each instruction (0: none)."""
        depth: list[int] = []
        for instr in self._instrs:
            below = max((depth[arg] for arg in instr.args), default=0)
            depth.append(below + (instr.op == "reduce"))
        return depth

    @cached_property
    def _passes(self) -> int:
        return max(self._depths, default=0)

    def _reduces(self, number: int) -> list[int]:
        """Reductions of one pass."""
        return [
            place
            for place, instr in enumerate(self._instrs)
            if instr.op == "reduce" and self._depths[place] == number + 1
        ]

    def _totals_type(self, number: int) -> str:
        kinds = ", ".join(reducer(self._instrs[place], CUDA) for place in self._reduces(number))
        return f"stitch::cuda::Totals<{kinds}>"

    def _varies(self, access: Access) -> bool:
        inner = access.strides[len(self.kernel.outer) :]
        return any(stride != 0 and size != 1 for stride, size in zip(inner, self.kernel.inner, strict=True))

    @cached_property
    def _row_values(self) -> list[int]:
        """Instructions whose value belongs to a row: fields of Row."""
        return [
            place
            for place, instr in enumerate(self._instrs)
            if self._levels[place] == 0 and instr.op != "const"
        ]

    @cached_property
    def _shared_loads(self) -> list[int]:
        """Loads that vary within a row and are needed before its last step: fields of Cells."""
        # What only the last step reads is loaded there: it would hold registers through all passes.
        wanted = {place for p in range(self._passes) for place in self._elements(self._pass_roots(p))}
        return sorted(
            {number_of(self._instrs[place]) for place in wanted if self._instrs[place].op == "load"}
        )

    def _pass_roots(self, number: int) -> list[int]:
        return [self._instrs[place].args[0] for place in self._reduces(number)]

    def _elements(self, roots: list[int]) -> list[int]:
        """Instructions to compute for each element on the way to `roots`."""
        return [place for place in needed(self._instrs, roots) if self._levels[place] == 1]

    @property
    def _element_stores(self) -> list[tuple[int, Access, int]]:
        return [row for row in self._stores if self._varies(row[1])]

    @property
    def _row_stores(self) -> list[tuple[int, Access, int]]:
        return [row for row in self._stores if not self._varies(row[1])]

    @property
    def _stores(self) -> list[tuple[int, Access, int]]:
        pairs = zip(self.kernel.stores, self.kernel.body.results, strict=True)
        return [(number, store, result) for number, (store, result) in enumerate(pairs)]

    def _outer(self, access: Access) -> str:
        return offset(self.kernel.outer, access.strides[: len(self.kernel.outer)], "r")

    def _inner(self, access: Access) -> str:
        return offset(self.kernel.inner, access.strides[len(self.kernel.outer) :], "c")

    def _inner_coordinates(self, accesses: Sequence[Access], places: list[int]) -> list[str]:
        first = len(self.kernel.outer)
        used = dims_used(self.kernel.inner, accesses, first)
        used |= {number_of(self._instrs[p]) - first for p in places if self._instrs[p].op == "index"}
        return coordinates(self.kernel.inner, "column", "c", used)

    # ---- members --------------------------------------------------------------------------------------

    def _row_struct(self, out: Lines) -> None:
        out.open("struct Row {")
        for name, access in self._windows():
            if self._varies(access) and self._outer(access):
                out.add(f"Index {name}_at;")
        for place in self._row_values:
            out.add(f"{VALUE_TYPES[self._instrs[place].dtype]} v{place};")
        out.close("};")

    def _windows(self) -> list[tuple[str, Access]]:
        loads = [(f"in{number}", access) for number, access in enumerate(self.kernel.loads)]
        return loads + [(f"out{number}", access) for number, access in enumerate(self.kernel.stores)]

    def _cells_struct(self, out: Lines) -> None:
        out.open("struct Cells {")
        for number in self._shared_loads:
            out.add(f"{group_type(self.kernel.loads[number], self.vector)} in{number};")
        out.close("};")

    def _begin(self, out: Lines) -> None:
        first = len(self.kernel.outer)
        out.open("__device__ __forceinline__ void begin(Index number, Row& row) const {")
        used = {
            dim
            for access in (*self.kernel.loads, *self.kernel.stores)
            for dim, stride in enumerate(access.strides[:first])
            if stride != 0 and self.kernel.outer[dim] != 1
        }
        used |= {
            number_of(instr) for instr in self._instrs if instr.op == "index" and number_of(instr) < first
        }
        out.add(*coordinates(self.kernel.outer, "number", "r", used))
        for name, access in self._windows():
            if self._varies(access) and self._outer(access):
                out.add(f"row.{name}_at = {self._outer(access)};")
        self._row_code(out, 0)
        out.close()
        out.add("")

    def _row_code(self, out: Lines, depth: int) -> None:
        """Values of a row that follow from reductions up to `depth` and no earlier."""
        totals = 0
        for place in self._row_values:
            instr = self._instrs[place]
            if self._depths[place] != depth:
                continue
            if instr.op == "load":
                access = self.kernel.loads[number_of(instr)]
                text = loaded(access, element(access, self._outer(access)))
            elif instr.op == "index":
                text = f"r{number_of(instr)}"
            elif instr.op == "reduce":
                # Counted in the order of `_reduces`, in which `take` added them.
                text = f"totals.template get<{totals}>()"
                totals += 1
            else:
                text = expression(instr, self._value_name, CUDA)
            out.add(f"row.v{place} = {text};")

    def _load(self, out: Lines) -> None:
        shared = [self.kernel.loads[number] for number in self._shared_loads]
        out.open("__device__ __forceinline__ Cells load(const Row& row, Index column) const {")
        out.add(*self._inner_coordinates(shared, []))
        out.add("Cells cells;")
        for number in self._shared_loads:
            out.add(f"cells.in{number} = {self._load_text(number)};")
        out.add("return cells;")
        out.close()
        out.add("")

    def _load_text(self, number: int) -> str:
        access = self.kernel.loads[number]
        return load_text(access, self.vector, self._where(f"in{number}", access))

    def _where(self, name: str, access: Access) -> str:
        outer = f"row.{name}_at" if self._outer(access) else ""
        return address(access, outer, self._inner(access))

    def _take(self, out: Lines) -> None:
        out.add("template <int P>")
        out.open(
            "__device__ __forceinline__ void take(const Row& row, const Cells& cells, Index column, "
            "Totals<P>& totals) const {"
        )
        for number in range(self._passes):
            roots = self._pass_roots(number)
            out.open(f"if constexpr (P == {number}) {{")
            places = self._elements(roots)
            out.add(*self._inner_coordinates([], places))
            out.unrolled(self.vector)
            self._element_code(out, places)
            for place, root in enumerate(roots):
                out.add(f"totals.template add<{place}>({self._value_name(root)});")
            out.close()
            out.close()
        out.close()
        out.add("")

    def _finish(self, out: Lines) -> None:
        out.add("template <int P>")
        out.open("__device__ __forceinline__ void finish(const Totals<P>& totals, Row& row) const {")
        for number in range(self._passes):
            out.open(f"if constexpr (P == {number}) {{")
            self._row_code(out, number + 1)
            out.close()
        out.close()
        out.add("")

    def _put(self, out: Lines) -> None:
        stores = self._element_stores
        places = self._elements([result for _, _, result in stores])
        late = sorted(
            {number_of(self._instrs[p]) for p in places if self._instrs[p].op == "load"}
            - set(self._shared_loads)
        )
        accesses = [self.kernel.loads[number] for number in late] + [access for _, access, _ in stores]
        out.open(
            "__device__ __forceinline__ void put(const Row& row, const Cells& cells, Index column) const {"
        )
        out.add(*self._inner_coordinates(accesses, places))
        for number in late:
            out.add(f"const auto in{number} = {self._load_text(number)};")
        for number, access, _ in stores:
            out.add(f"{group_type(access, self.vector)} out{number};")
        if stores:
            out.unrolled(self.vector)
            self._element_code(out, places)
            for number, access, result in stores:
                text = stored(access, self._instrs[result], self._value_name(result))
                out.add(f"out{number}[e] = {text};")
            out.close()
        for number, access, _ in stores:
            out.add(store_text(access, self.vector, self._where(f"out{number}", access), f"out{number}"))
        out.close()
        out.add("")

    def _put_row(self, out: Lines) -> None:
        out.open("__device__ __forceinline__ void put_row(Index number, const Row& row) const {")
        accesses = [access for _, access, _ in self._row_stores]
        first = len(self.kernel.outer)
        used = dims_used(self.kernel.outer, [Access(a.buffer, a.strides[:first]) for a in accesses])
        out.add(*coordinates(self.kernel.outer, "number", "r", used))
        for _, access, result in self._row_stores:
            text = stored(access, self._instrs[result], self._value_name(result))
            out.add(f"{element(access, self._outer(access))} = {text};")
        out.close()

    def _element_code(self, out: Lines, places: list[int]) -> None:
        shared = set(self._shared_loads)
        first, last = len(self.kernel.outer), len(self.kernel.inner) - 1
        instructions(
            out,
            self._instrs,
            places,
            load=lambda n: f"cells.in{n}[e]" if n in shared else f"in{n}[e]",
            index=lambda axis: f"int64_t{{c{axis - first}}}" + (" + e" if axis - first == last else ""),
            loads=self.kernel.loads,
            name=self._value_name,
        )

    def _value_name(self, place: int) -> str:
        if self._instrs[place].op == "const":
            return constant(self._instrs[place], CUDA)
        return f"row.v{place}" if self._levels[place] == 0 else f"v{place}"
