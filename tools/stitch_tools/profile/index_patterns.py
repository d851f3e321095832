"""Finds accesses of a kernel's source that conflict in shared memory, or scatter over global memory.

Every access whose index is simple arithmetic is evaluated for the threads of a warp. It counts only if it is
bad whatever numbers stand for the names that the source does not define.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tree_sitter import Node

from stitch_tools.judge.source.cuda_source import CudaFunction, CudaSource, text_of
from stitch_tools.profile.lane_values import Lanes, LaneValues, bank_ways, sectors
from stitch_tools.profile.occupancy import WARP
from stitch_tools.profile.thresholds import THRESHOLDS

_ITEM_BYTES = {
    "char": 1,
    "int8_t": 1,
    "uint8_t": 1,
    "bool": 1,
    "half": 2,
    "__half": 2,
    "__nv_bfloat16": 2,
    "short": 2,
    "int16_t": 2,
    "float": 4,
    "int": 4,
    "unsigned": 4,
    "int32_t": 4,
    "uint32_t": 4,
    "half2": 4,
    "__half2": 4,
    "double": 8,
    "float2": 8,
    "int64_t": 8,
    "long": 8,
    "float4": 16,
    "int4": 16,
    "uint4": 16,
}
_LEAST_WAYS = 4
"""Two-way conflicts are often cheaper than what avoids them."""
_GUESSES = 2


@dataclass(frozen=True)
class IndexFinding:
    """One access of a warp that takes more passes or sectors than it must."""

    kernel: str
    memory: Literal["shared", "global"]
    access: Literal["load", "store"]
    array: str
    line: int
    """1-based, in the file."""
    text: str
    """As written: `tile[threadIdx.x][k]`."""
    passes: int
    """Bank conflicts: passes of one access. Global memory: sectors of one access."""


@dataclass(frozen=True)
class _Array:
    memory: Literal["shared", "global"]
    item_bytes: int
    sizes: tuple[int | None, ...] = ()


@dataclass
class _Walk:
    """One pass over a kernel's body with one guess."""

    source: CudaSource
    kernel: CudaFunction
    values: LaneValues
    arrays: dict[str, _Array] = field(default_factory=dict[str, _Array])
    found: dict[tuple[int, int], IndexFinding] = field(default_factory=dict[tuple[int, int], IndexFinding])
    """By place in the text."""


def index_findings(
    source: CudaSource, blocks: Mapping[str, tuple[int, int, int]] | None = None
) -> tuple[IndexFinding, ...]:
    """The costly accesses of all kernels of a file, in the order of the text.

    Args:
        source: from `parse_cuda`.
        blocks: block sizes by kernel; a kernel without one is taken to run in rows of 256 threads.
    """
    constants = file_constants(source)
    found: list[IndexFinding] = []
    for kernel in source.functions:
        if kernel.is_kernel:
            block = (blocks or {}).get(kernel.name, (256, 1, 1))
            found.extend(_findings(source, kernel, block, constants))
    return tuple(found)


def _findings(
    source: CudaSource, kernel: CudaFunction, block: tuple[int, int, int], constants: Mapping[str, Node]
) -> list[IndexFinding]:
    passes: list[dict[tuple[int, int], IndexFinding]] = []
    for guess in range(_GUESSES):
        values = LaneValues(block, guess)
        for name, node in constants.items():
            values.names[name] = values.value(node)
        walk = _Walk(source, kernel, values, _parameters(kernel))
        _visit(walk, kernel.body, tuple(range(WARP)))
        passes.append(walk.found)
    everywhere = set(passes[0]).intersection(*passes[1:])
    return [passes[0][place] for place in sorted(everywhere)]


def file_constants(source: CudaSource) -> dict[str, Node]:
    """Names that the file gives an expression to outside of functions."""
    found: dict[str, Node] = {}
    for declaration in source.of("declaration"):
        if declaration.id not in source.owners:
            for name, value in _initialised(declaration):
                found[name] = value
    return found


def _parameters(kernel: CudaFunction) -> dict[str, _Array]:
    declarator = kernel.node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        declarator = declarator.child_by_field_name("declarator")
    listed = declarator.child_by_field_name("parameters") if declarator is not None else None
    arrays: dict[str, _Array] = {}
    for parameter in listed.named_children if listed is not None else ():
        inner = parameter.child_by_field_name("declarator")
        size = _item_bytes(parameter)
        if inner is not None and inner.type == "pointer_declarator" and size is not None:
            arrays[_declared_name(inner)] = _Array("global", size)
    return arrays


def _visit(walk: _Walk, node: Node, lanes: tuple[int, ...]) -> None:
    """Follow the statements in the order of the text; `lanes` are the threads that get here."""
    if node.type == "declaration":
        _declare(walk, node, lanes)
        return
    if node.type == "if_statement":
        condition = walk.values.value(node.child_by_field_name("condition"))
        inside = lanes if condition is None else tuple(lane for lane in lanes if condition[lane])
        for child in node.named_children:
            _visit(walk, child, inside if child == node.child_by_field_name("consequence") else lanes)
        return
    if node.type == "assignment_expression":
        _assign(walk, node, lanes)
        return
    if node.type == "subscript_expression":
        _access(walk, node, lanes, "load")
        return
    for child in node.named_children:
        _visit(walk, child, lanes)


def _declare(walk: _Walk, node: Node, lanes: tuple[int, ...]) -> None:
    shared = "__shared__" in text_of(node).partition("[")[0]
    for part in node.children_by_field_name("declarator"):
        inner = part.child_by_field_name("declarator") if part.type == "init_declarator" else part
        if inner is not None and inner.type == "array_declarator":
            item_bytes = _item_bytes(node)
            if shared and item_bytes is not None:
                walk.arrays[_declared_name(inner)] = _Array("shared", item_bytes, _sizes(walk, inner))
            else:
                walk.arrays.pop(_declared_name(inner), None)  # in registers, whatever a parameter is named
    for name, value in _initialised(node):
        _visit(walk, value, lanes)
        walk.values.names[name] = walk.values.value(value)
        walk.arrays.pop(name, None)


def _assign(walk: _Walk, node: Node, lanes: tuple[int, ...]) -> None:
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if right is not None:
        _visit(walk, right, lanes)
    if left is None:
        return
    is_plain = text_of(node.child_by_field_name("operator")) == "="
    if left.type == "subscript_expression":
        _access(walk, left, lanes, "store")
    elif left.type == "identifier" and is_plain:
        walk.values.names[text_of(left)] = walk.values.value(right)
    # `i += step` leaves the threads as far apart as they are, if all go the same step.
    elif left.type == "identifier" and not _is_uniform(walk.values.value(right)):
        walk.values.names[text_of(left)] = None


def _access(walk: _Walk, node: Node, lanes: tuple[int, ...], access: Literal["load", "store"]) -> None:
    base, indices = _chain(node)
    for index in indices:
        _visit(walk, index, lanes)
    array = walk.arrays.get(text_of(base)) if base is not None and base.type == "identifier" else None
    if base is None or array is None or len(lanes) < WARP // 2:
        return
    values = [walk.values.value(index) for index in indices]
    sizes = array.sizes or (None,)
    if len(values) != len(sizes) or any(size is None for size in sizes[1:]):
        return
    flat = [0] * WARP
    for value, size in zip(values, sizes, strict=True):
        if value is None:
            return
        flat = [at * (size or 1) + step for at, step in zip(flat, value, strict=True)]
    addresses = [flat[lane] * array.item_bytes for lane in lanes]
    passes = _cost(array, addresses)
    if passes:
        text = " ".join(text_of(node).split())
        place = node.start_point[0], node.start_point[1]
        line = walk.source.line(node)
        walk.found[place] = IndexFinding(
            walk.kernel.name, array.memory, access, text_of(base), line, text, passes
        )


def _cost(array: _Array, addresses: list[int]) -> int:
    """Passes or sectors of a costly access; 0 of one that is as good as it can be."""
    if array.memory == "shared":
        ways = bank_ways(addresses, array.item_bytes)
        return ways if ways >= _LEAST_WAYS else 0
    touched = sectors(addresses, array.item_bytes)
    # Threads that read the same element waste no sector.
    wanted = len(set(addresses)) * array.item_bytes / 32
    is_scattered = touched >= THRESHOLDS.sectors_per_request and wanted / touched <= THRESHOLDS.sector_use
    return touched if is_scattered else 0


def _chain(node: Node) -> tuple[Node | None, list[Node]]:
    """`a[i][j]` as a and [i, j]."""
    indices: list[Node] = []
    current: Node | None = node
    while current is not None and current.type == "subscript_expression":
        inside = current.child_by_field_name("indices") or current.child_by_field_name("index")
        if inside is None:
            return None, []
        indices[:0] = inside.named_children if inside.type == "subscript_argument_list" else [inside]
        current = current.child_by_field_name("argument")
    return current, indices


def _initialised(declaration: Node) -> Iterator[tuple[str, Node]]:
    for part in declaration.children_by_field_name("declarator"):
        if part.type == "init_declarator":
            name, value = part.child_by_field_name("declarator"), part.child_by_field_name("value")
            if name is not None and name.type == "identifier" and value is not None:
                yield text_of(name), value


def _sizes(walk: _Walk, declarator: Node) -> tuple[int | None, ...]:
    sizes: list[int | None] = []
    current: Node | None = declarator
    while current is not None and current.type == "array_declarator":
        value = walk.values.value(current.child_by_field_name("size"))
        sizes.insert(0, None if value is None else value[0])
        current = current.child_by_field_name("declarator")
    return tuple(sizes)


def _item_bytes(node: Node) -> int | None:
    words = text_of(node.child_by_field_name("type")).split()
    return next((_ITEM_BYTES[word] for word in reversed(words) if word in _ITEM_BYTES), None)


def _declared_name(node: Node) -> str:
    current: Node | None = node
    while current is not None and current.type != "identifier":
        names = (row for row in current.named_children if row.type.endswith("identifier"))
        current = current.child_by_field_name("declarator") or next(names, None)
    return text_of(current)


def _is_uniform(value: Lanes | None) -> bool:
    return value is not None and len(set(value)) == 1
