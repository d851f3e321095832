"""How a generated class reads and writes memory: its pointers, index arithmetic, loads and stores."""

from collections.abc import Sequence

from stitch_planner.stitcher.emit.cuda.schedule import is_linear
from stitch_planner.stitcher.emit.scalar_text import MEMORY_TYPES
from stitch_planner.stitcher.lower.kernel_ir import Access, Buffer, View


def pointers(loads: Sequence[Access], stores: Sequence[Access]) -> dict[Buffer, str]:
    """Each buffer of a kernel once, with the declaration of the pointer to it, reads first.

    A comment says which of the kernel's operands (in0, out0, ...) go through the pointer.
    """
    written = {access.buffer for access in stores}
    uses: dict[Buffer, list[str]] = {}
    for verb, accesses in (("in", loads), ("out", stores)):
        for number, access in enumerate(accesses):
            uses.setdefault(access.buffer, []).append(f"{verb}{number}")
    declared: dict[Buffer, str] = {}
    for buffer, names in uses.items():
        kind = MEMORY_TYPES[buffer.dtype]
        # What a kernel also writes must not be promised to have no other pointer to it.
        pointer = f"{kind}*" if buffer in written else f"const {kind}* __restrict__"
        declared[buffer] = f"{pointer} {pointer_name(buffer)};  // {', '.join(names)}"
    return declared


def pointer_name(buffer: Buffer) -> str:
    """The C++ name of the pointer to a buffer.

    The underscore keeps names of the reference apart from our own (`row`, `input`, `v3`), which never end so.
    """
    return f"{buffer.name}_"


def coordinates(space: Sequence[int], index: str, prefix: str, used: set[int]) -> list[str]:
    """Declarations of the coordinates `<prefix><dim>` in `used`, taken out of a linear index.

    Sizes are constants, so the compiler turns each division into a multiplication.
    """
    lines: list[str] = []
    inner = 1
    for dim in reversed(range(len(space))):
        outermost = all(size == 1 for size in space[:dim])
        if dim in used:
            quotient = index if inner == 1 else f"{index} / {inner}"
            text = quotient if outermost else f"{quotient} % {space[dim]}"
            lines.append(f"const Index {prefix}{dim} = {text};")
        inner *= space[dim]
    return lines


def dims_used(space: Sequence[int], accesses: Sequence[Access], begin: int = 0) -> set[int]:
    """Dims whose coordinates the accesses need, counted from `begin`, of those that span `space`."""
    used: set[int] = set()
    for access in accesses:
        strides = access.strides[begin : begin + len(space)]
        used |= {dim for dim, stride in enumerate(strides) if stride != 0 and space[dim] != 1}
    return used


def offset(space: Sequence[int], strides: Sequence[int], prefix: str) -> str:
    """Sum of coordinate times stride over `space`, "" where nothing varies."""
    terms = [
        f"{prefix}{dim}" if stride == 1 else f"{prefix}{dim} * {stride}"
        for dim, (size, stride) in enumerate(zip(space, strides, strict=True))
        if stride != 0 and size != 1
    ]
    return " + ".join(terms)


def linear_address(space: Sequence[int], access: Access, index: str, prefix: str) -> str:
    """The address of an access at a linear index over the whole space."""
    if is_linear(space, access) and any(access.strides):
        return address(access, index)
    return address(access, offset(space, access.strides, prefix))


def address(access: Access, *parts: str) -> str:
    """The buffer's pointer plus the parts that are not empty, and the window's own offset."""
    fixed = str(access.offset) if access.offset else ""
    return " + ".join(filter(None, (pointer_name(access.buffer), fixed, *parts)))


def element(access: Access, where: str) -> str:
    """One element of the buffer, at `where` behind the window's own offset."""
    fixed = str(access.offset) if access.offset else ""
    return f"{pointer_name(access.buffer)}[{' + '.join(filter(None, (fixed, where))) or '0'}]"


def load_text(access: Access, vector: int, where: str) -> str:
    """Expression that loads a group of `vector` neighbours along the innermost dim."""
    stride = access.strides[-1] if access.strides else 0
    if stride == 1 or vector == 1:
        return f"stitch::cuda::load<{vector}>({where})"
    if stride == 0:
        return f"stitch::cuda::splat<{vector}>({where})"
    return f"stitch::cuda::gather<{vector}>({where}, {stride})"


def store_text(access: Access, vector: int, where: str, group: str) -> str:
    """Statement that stores a group of `vector` neighbours."""
    stride = access.strides[-1] if access.strides else 0
    if stride == 1 or vector == 1:
        return f"stitch::cuda::store<{vector}>({where}, {group});"
    return f"stitch::cuda::scatter<{vector}>({where}, {stride}, {group});"


def group_type(access: Access, vector: int) -> str:
    """Type of a group of the buffer's elements."""
    return f"stitch::cuda::Group<{MEMORY_TYPES[access.buffer.dtype]}, {vector}>"


def aligned(*views: View) -> bool:
    """Whether groups of four float32 elements may be read from where the windows begin."""
    return all(view.offset % 4 == 0 for view in views)
