"""The typed kernel IR that C++ and CUDA share; only the last step, IR to text, knows the language.

A `KernelProgram` is a list of buffers and a list of kernels in execution order. A kernel touches memory only
through `View`s (a strided window on a buffer), so a permuted, expanded or sliced tensor costs nothing: its
consumer reads it with other strides. Three kernel families compute scalar expressions:

    PointwiseKernel   every element of an iteration space on its own
    RowKernel         reductions over the trailing dims of the space, then an element-wise epilogue
    ColumnKernel      the same, where a kept dim, not a reduced one, is innermost in memory

What they compute is a `Body`: scalar instructions in SSA form. `LibraryCall` is everything else: one of
operations.py, which each target writes as an object of a header class.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal, Self, TypeVar, cast

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Role = Literal["input", "param", "workspace", "output", "state"]
Scalar = Literal["float32", "float64", "int32", "int64", "bool", "uint8"]


@dataclass(frozen=True)
class Buffer:
    """A dense block of memory with one element type."""

    name: str
    """C++ identifier, unique in the program."""
    dtype: Scalar
    numel: int
    """Elements."""
    role: Role
    position: int = 0
    """Position among the ABI's inputs, outputs or state tensors."""
    source: str = ""
    """Qualified name in the reference, for a parameter."""
    data: bytes | None = None
    """Elements of a constant that the reference made itself (role `param`, no `source`)."""
    offset: int = 0
    """Byte offset in the workspace, once `memory.assign_offsets` has run."""
    window: "View | None" = None
    """On a parameter, for a dense row-major copy of it that is made at initialisation (role `param`)."""

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self.numel * SCALAR_BYTES[self.dtype]


SCALAR_BYTES: dict[str, int] = {
    "float32": 4,
    "float64": 8,
    "int32": 4,
    "int64": 8,
    "bool": 1,
    "uint8": 1,
}


@dataclass(frozen=True)
class View:
    """A strided window on a buffer: what a tensor of the graph is after lowering."""

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Elements to step for each dim; 0 repeats (a broadcast dim)."""
    offset: int = 0
    """Elements from the buffer's begin."""

    @property
    def numel(self) -> int:
        """Elements that the window shows (repeated ones count)."""
        return prod(self.shape)

    @property
    def dtype(self) -> Scalar:
        """Element type."""
        return self.buffer.dtype

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie row-major without gaps."""
        return all(
            size == 1 or stride == dense
            for size, stride, dense in zip(self.shape, self.strides, row_major(self.shape), strict=True)
        )

    @property
    def is_channels_last(self) -> bool:
        """Whether the window lies as N, spatial..., C in memory without gaps (row-major below three dims)."""
        return all(
            size == 1 or stride == dense
            for size, stride, dense in zip(self.shape, self.strides, channels_last(self.shape), strict=True)
        )


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of a dense row-major tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of a dense tensor whose dim 1 is innermost in memory (N, spatial..., C)."""
    if len(shape) < 3:
        return row_major(shape)
    moved = row_major((shape[0], *shape[2:], shape[1]))
    return (moved[0], moved[-1], *moved[1:-1])


Op = str
"""`load`, `const`, `index`, `reduce`, or a function of stitch/common/math.h (`add`, `exp`, ...)."""


@dataclass(frozen=True)
class Instr:
    """One scalar value of a body."""

    op: Op
    args: tuple[int, ...] = ()
    """Positions of the operands, all smaller than its own."""
    dtype: Scalar = "float32"
    """Type of the result."""
    value: float | int | bool | str | None = None
    """load: position in the kernel's `loads`; const: the constant; index: the axis of the iteration space;
    reduce: `sum`, `max`, `min` or `prod`."""


@dataclass(frozen=True)
class Body:
    """Scalar instructions in SSA order, and which of them are stored."""

    instrs: tuple[Instr, ...]
    results: tuple[int, ...]
    """Positions of the values that are stored, one for each of the kernel's `stores`."""


@dataclass(frozen=True)
class Access:
    """How a kernel walks over a buffer: one stride for each dim of its iteration space."""

    buffer: Buffer
    strides: tuple[int, ...]
    """Elements; 0 where the operand does not vary along the dim."""
    offset: int = 0


@dataclass(frozen=True)
class PointwiseKernel:
    """Computes every element of `space` on its own. Dims are in memory order and collapsed where possible."""

    name: str
    comment: str
    """What it computes, in words of the reference."""
    nodes: tuple[str, ...]
    space: tuple[int, ...]
    loads: tuple[Access, ...]
    body: Body
    stores: tuple[Access, ...]


@dataclass(frozen=True)
class RowKernel:
    """Reduces over `inner` for each index of `outer`, in as many passes as reductions depend on each other.

    The iteration space of accesses is `outer + inner`. In the body, a value is *per element* when it depends
    on a load that varies over `inner` (or on an inner index) outside a `reduce`; all others are *per row*.
    A per-row result is stored once for each row: its access has stride 0 in all inner dims.
    """

    name: str
    comment: str
    nodes: tuple[str, ...]
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    loads: tuple[Access, ...]
    body: Body
    stores: tuple[Access, ...]


@dataclass(frozen=True)
class ColumnKernel:
    """As RowKernel, but the last dim of `outer` is contiguous in memory and is the one that is vectorised."""

    name: str
    comment: str
    nodes: tuple[str, ...]
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    loads: tuple[Access, ...]
    body: Body
    stores: tuple[Access, ...]


@dataclass(frozen=True)
class LibraryOp:
    """What one library call computes: tensors, and numbers. operations.py has them all.

    A tensor is a field that holds a `View`, a tuple of them, None, or a dataclass of such fields.
    """

    written: ClassVar[tuple[str, ...]] = ("out",)
    """Names of the fields that the call writes to."""

    def reads(self) -> tuple[View, ...]:
        """What the call reads, parameters of its initialisation included."""
        return tuple(view for name, view in _tensors(self) if name not in self.written)

    def writes(self) -> tuple[View, ...]:
        """What it writes."""
        return tuple(view for name, view in _tensors(self) if name in self.written)

    def over(self, moved: Callable[[Buffer], Buffer]) -> Self:
        """The operation over the buffers that `moved` gives for its own."""
        return _over(self, moved)


def _tensors(op: "DataclassInstance") -> list[tuple[str, View]]:
    found: list[tuple[str, View]] = []
    for item in fields(op):
        value: object = getattr(op, item.name)
        values = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
        for one in values:
            if isinstance(one, View):
                found.append((item.name, one))
            elif is_dataclass(one) and not isinstance(one, type):
                found += _tensors(one)
    return found


DataclassT = TypeVar("DataclassT", bound="DataclassInstance")


def _over(op: DataclassT, moved: Callable[[Buffer], Buffer]) -> DataclassT:
    def turn(value: object) -> object:
        if isinstance(value, View):
            return replace(value, buffer=moved(value.buffer))
        if isinstance(value, tuple):
            return tuple(map(turn, cast("tuple[object, ...]", value)))
        return _over(value, moved) if is_dataclass(value) and not isinstance(value, type) else value

    return replace(op, **{item.name: turn(getattr(op, item.name)) for item in fields(op)})


@dataclass(frozen=True)
class LibraryCall:
    """One object of a header class: a member of the handle, initialised once and run on every forward."""

    name: str
    comment: str
    nodes: tuple[str, ...]
    operation: LibraryOp


Kernel = PointwiseKernel | RowKernel | ColumnKernel | LibraryCall


@dataclass(frozen=True)
class KernelProgram:
    """Buffers and kernels of one whole forward."""

    name: str
    target: str
    """`cpu` or `cuda:sm_90`."""
    inputs: tuple[View, ...]
    """Windows in ABI order, each on a whole buffer (the runtime copies tensors that lie otherwise first)."""
    outputs: tuple[View, ...]
    """Dense row-major windows in ABI order, roles `output`."""
    params: tuple[View, ...]
    """Parameters that kernels use, or that `kept` shows, dense."""
    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    """Every buffer that a kernel touches, each once."""
    workspace_bytes: int = 0
    kept: tuple[Buffer, ...] = ()
    """Copies of parameters in another layout, made at initialisation in this order."""
    state: tuple[View, ...] = ()
    """Buffers of the reference that the forward updates in place, in ABI order."""


def kernel_reads(kernel: Kernel) -> tuple[Buffer, ...]:
    """Buffers that `kernel` reads, parameters of its initialisation included."""
    if isinstance(kernel, LibraryCall):
        return tuple(view.buffer for view in kernel.operation.reads())
    return tuple(access.buffer for access in kernel.loads)


def kernel_writes(kernel: Kernel) -> tuple[Buffer, ...]:
    """Buffers that `kernel` writes."""
    if isinstance(kernel, LibraryCall):
        return tuple(view.buffer for view in kernel.operation.writes())
    return tuple(access.buffer for access in kernel.stores)


def inputs_written(program: KernelProgram) -> tuple[int, ...]:
    """Positions of the inputs that the program writes to."""
    written = {buffer for kernel in program.kernels for buffer in kernel_writes(kernel)}
    return tuple(sorted(buffer.position for buffer in written if buffer.role == "input"))
