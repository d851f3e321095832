"""From planned steps to kernels: the context in which templates look up values and add kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, value_key
from stitch_planner.stitcher.lower.kernel_ir import (
    SCALAR_BYTES,
    Body,
    Buffer,
    Instr,
    Kernel,
    LibraryCall,
    LibraryOp,
    PointwiseKernel,
    Scalar,
    View,
    row_major,
)
from stitch_planner.stitcher.lower.views import memory_order, permute
from stitch_tools.models.graph import Argument, GraphNode


class UnloweredError(Exception):
    """Something has no place in a native program."""

    def __init__(self, reason: str, nodes: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.nodes = nodes
        """Those whose template met what its `refuses` did not foresee: they become eager nodes."""


def copy_kernel(name: str, source: View, target: View, what: str) -> PointwiseKernel:
    """A kernel that copies `source` to `target` (equal shapes), walking in the target's memory order."""
    space, loads, stores = memory_order(source.shape, (source,), (target,))
    body = Body((Instr("load", (), source.dtype, 0),), (0,))
    return PointwiseKernel(name, f"copies {what} into another layout", (), space, loads, body, stores)


Wish = tuple[View, tuple[int, ...]]
"""A window, and the strides that a copy of it should have."""


@dataclass
class Lowering:
    """State of one lowering: where each value lies, and the kernels so far.

    Templates call `view` for operands, `new` for results (or `bind` for a window on something that exists),
    and `add` for kernels.
    """

    index: GraphIndex
    values: dict[ValueKey, View] = field(default_factory=dict[ValueKey, View])
    kernels: list[Kernel] = field(default_factory=list[Kernel])
    names: set[str] = field(default_factory=set[str])
    output_of: dict[ValueKey, int] = field(default_factory=dict[ValueKey, int])
    """Values that, stored dense, are an output of the program: no copy is needed at the end."""
    make_copy: Callable[[str, View, View, str], Kernel] = copy_kernel
    """How the target copies a window into another: name, source, target, and what it is for people."""
    keeps_copies: bool = False
    """Whether the target copies windows on parameters at initialisation."""
    joined: dict[ValueKey, View] = field(default_factory=dict[ValueKey, View])
    """Where results of joins lie whose operands are written there before the join itself is lowered."""
    in_slices: dict[ValueKey, View] = field(default_factory=dict[ValueKey, View])
    """Operands that have been copied into such a result."""
    kept: dict[Wish, View] = field(default_factory=dict[Wish, View])
    """Those copies, by what they were wished for."""

    def view(self, key: ValueKey) -> View:
        """Where a value lies."""
        return self.values[key]

    def dense(self, key: ValueKey) -> View:
        """The value as a dense row-major window; copies it with a kernel of its own if it lies otherwise."""
        view = self.view(key)
        return view if view.is_dense else self.copy(view, row_major(view.shape), key[0])

    def dense_or_none(self, value: Argument) -> View | None:
        """The dense tensor behind an argument that a node may leave out."""
        return None if value is None else self.dense(value_key(value))

    def new(
        self, key: ValueKey, *, strides: tuple[int, ...] | None = None, buffer_name: str | None = None
    ) -> View:
        """A fresh buffer for the value, bound to it; row-major unless `strides` say otherwise.

        The wish for strides is not granted where the value is an output of the program: look at the result.
        """
        spec = self.index.spec(key)
        position = self.output_of.get(key)
        if position is not None:
            buffer = Buffer(
                self.unique(f"out_{position}"), scalar(spec.dtype), spec.numel, "output", position
            )
            view = View(buffer, spec.shape, row_major(spec.shape))
        else:
            view = self.scratch(buffer_name or key[0], spec.shape, scalar(spec.dtype), strides=strides)
        self.values[key] = view
        return view

    def scratch(
        self, name: str, shape: tuple[int, ...], dtype: Scalar, *, strides: tuple[int, ...] | None = None
    ) -> View:
        """A fresh workspace buffer that no value of the graph is bound to."""
        chosen = strides if strides is not None else row_major(shape)
        numel = 1 + sum((size - 1) * stride for size, stride in zip(shape, chosen, strict=True) if size)
        empty = any(size == 0 for size in shape)
        buffer = Buffer(self.unique(name), dtype, 0 if empty else numel, "workspace")
        return View(buffer, shape, chosen)

    def bind(self, key: ValueKey, view: View) -> None:
        """Says that a value is this window on an existing buffer."""
        self.values[key] = view

    def add(self, kernel: Kernel) -> None:
        """Appends a kernel to the program.

        Raises:
            UnloweredError: it computes with an index that its type, int32, cannot hold.
        """
        # An index as a value (arange, a causal mask) is int32; addresses are computed in 64 bits where they
        # need it.
        if _largest_index(kernel) > LARGEST_INT32:
            raise UnloweredError(f"no template computes with indices beyond {LARGEST_INT32}")
        self.kernels.append(kernel)

    def call(self, name: str, comment: str, nodes: Sequence[GraphNode], operation: LibraryOp) -> None:
        """Appends a library call that computes `nodes`."""
        self.add(LibraryCall(self.unique(name), comment, tuple(node.name for node in nodes), operation))

    def unique(self, name: str) -> str:
        """`name` as a C++ identifier that no buffer or kernel has yet, underscores aside.

        Kernels become structs in camel case, where `k_mul` and `k_mul_` would be one.
        """
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
        # Names come from the graph, that is from the user's model: any text has to become an identifier.
        base = base if base[:1].isalpha() else f"v_{base}"
        base = base if base not in CPP_KEYWORDS | OWN_NAMES else f"{base}_"
        result, count = base, 1
        while _folded(result) in self.names:
            count += 1
            result = f"{base}_{count}"
        self.names.add(_folded(result))
        return result

    def copy(self, source: View, strides: tuple[int, ...], name: str, target: View | None = None) -> View:
        """A copy of `source` with other strides; into `target` where that is given.

        A kernel makes it in each forward; of a parameter it is made at initialisation, where the target can.
        """
        # A copy of a weight that is made once costs each forward nothing.
        kept = self.keep(source, strides, name) if target is None else None
        if kept is not None:
            return kept
        goal = target or self.scratch(f"{name}_copy", source.shape, source.dtype, strides=strides)
        if source.numel:
            self.add(self.make_copy(self.unique(f"copy_{name}"), source, goal, name))
        return goal

    def keep(self, source: View, strides: tuple[int, ...], name: str) -> View | None:
        """A copy of a window on a parameter that is made once, at initialisation; None where it cannot be.

        Parameters change with the next initialisation only.
        """
        if not self.keeps_copies or source.buffer.role != "param" or not source.numel:
            return None
        order = sorted(range(len(strides)), key=lambda dim: (-strides[dim], dim))
        window = permute(source, order)
        copied = View(source.buffer, window.shape, tuple(strides[dim] for dim in order))
        if not copied.is_dense:
            return None
        view = self.kept.get((source, strides))
        if view is None:
            buffer = Buffer(self.unique(f"{name}_kept"), source.dtype, source.numel, "param", window=window)
            view = self.kept[source, strides] = View(buffer, source.shape, strides)
        return view


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


LARGEST_INT32 = 2**31 - 1


def _largest_index(kernel: Kernel) -> int:
    """The largest value of an `index` instruction; addresses are another matter, they take what they need."""
    if isinstance(kernel, LibraryCall):
        return 0
    space = kernel.space if isinstance(kernel, PointwiseKernel) else (*kernel.outer, *kernel.inner)
    axes = [instr.value for instr in kernel.body.instrs if instr.op == "index"]
    return max((space[axis] - 1 for axis in axes if isinstance(axis, int)), default=0)


def scalar(dtype: str) -> Scalar:
    """The dtype as one that kernels know.

    Raises:
        UnloweredError: kernels have no such element type.
    """
    if dtype not in SCALAR_BYTES:
        raise UnloweredError(f"no template computes in {dtype}")
    return dtype  # pyright: ignore[reportReturnType]  # narrowed by the line above


CPP_KEYWORDS = frozenset(
    [
        "and",
        "auto",
        "bool",
        "break",
        "case",
        "char",
        "class",
        "const",
        "continue",
        "default",
        "delete",
        "do",
        "double",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "not",
        "operator",
        "or",
        "private",
        "protected",
        "public",
        "register",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "true",
        "try",
        "typedef",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "while",
        "xor",
        "in",
        "out",
        "lib",
        "scratch",
        "threads",
        "handle",
        "args",
    ]
)

OWN_NAMES = frozenset(
    name
    for line in (
        "cpu error forward index init keep kept load math memory param prepare",
        "run status std stitch store take_params program at row total j",
    )
    for name in line.split()
)
"""Names that generated code uses itself."""
