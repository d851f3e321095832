"""Evaluates simple integer expressions of a kernel for the 32 threads of its first warp, from source alone.

Names that the source gives no number to (arguments, template parameters) are given arbitrary ones, the same
for all threads. Whatever depends on memory or on calls has no value.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from tree_sitter import Node

from stitch_tools.judge.source.cuda_source import text_of
from stitch_tools.profile.occupancy import WARP

Lanes = tuple[int, ...]
"""A value for each thread of a warp."""
_CASTS = ("static_cast", "int", "unsigned", "size_t", "int64_t", "uint32_t", "int32_t", "long", "ptrdiff_t")


def _divide(left: int, right: int) -> int:
    return int(left / right) if right else 0


def _remainder(left: int, right: int) -> int:
    return left - right * _divide(left, right) if right else 0


def _shift_left(left: int, right: int) -> int:
    return left << right if 0 <= right < 64 else 0


def _shift_right(left: int, right: int) -> int:
    return left >> right if 0 <= right < 64 else 0


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "%": _remainder,
    "&": lambda left, right: left & right,
    "|": lambda left, right: left | right,
    "^": lambda left, right: left ^ right,
    "<<": _shift_left,
    ">>": _shift_right,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&&": lambda left, right: int(bool(left) and bool(right)),
    "||": lambda left, right: int(bool(left) or bool(right)),
}


@dataclass
class LaneValues:
    """What is known of the names of one kernel at one place."""

    block: tuple[int, int, int]
    guess: int
    """Chooses the arbitrary numbers: another guess gives others."""
    names: dict[str, Lanes | None] = field(default_factory=dict[str, Lanes | None])
    """None: the name depends on what cannot be evaluated."""

    def value(self, node: Node | None) -> Lanes | None:
        """The expression's value for each thread; None where it cannot be told."""
        if node is None:
            return None
        handler = _HANDLERS.get(node.type)
        return None if handler is None else handler(self, node)

    def position(self, builtin: str, axis: str) -> Lanes | None:
        """threadIdx, blockIdx, blockDim or gridDim of each thread of the first warp."""
        at = "xyz".find(axis)
        if at < 0:
            return None
        if builtin == "threadIdx":
            before = (1, self.block[0], self.block[0] * self.block[1])[at]
            return tuple(lane // before % self.block[at] for lane in range(WARP))
        # Any block but the first: the position of a block must not look like zero by chance.
        numbers = {"blockDim": self.block[at], "gridDim": 64, "blockIdx": 3 if at == 0 else 2}
        return (numbers[builtin],) * WARP if builtin in numbers else None

    def named(self, name: str) -> Lanes | None:
        """The value of a name; an arbitrary number where nothing is known of it."""
        if name not in self.names:
            self.names[name] = (self.arbitrary(name),) * WARP
        return self.names[name]

    def arbitrary(self, name: str) -> int:
        """A number for a name: a multiple of 256 at an even guess, at an odd one an odd number."""
        small = crc32(name.encode()) % 7 + 2
        return 256 * small if self.guess % 2 == 0 else 256 * small + 17


def _number(_: LaneValues, node: Node) -> Lanes | None:
    text = text_of(node).replace("'", "").rstrip("uUlLzZ")
    try:
        return (int(text, 0),) * WARP
    except ValueError:
        return None


def _identifier(values: LaneValues, node: Node) -> Lanes | None:
    return values.named(text_of(node).rpartition("::")[2])


def _binary(values: LaneValues, node: Node) -> Lanes | None:
    apply = _OPERATORS.get(text_of(node.child_by_field_name("operator")))
    left = values.value(node.child_by_field_name("left"))
    right = values.value(node.child_by_field_name("right"))
    if apply is None or left is None or right is None:
        return None
    return tuple(int(apply(a, b)) for a, b in zip(left, right, strict=True))


def _unary(values: LaneValues, node: Node) -> Lanes | None:
    inner = values.value(node.child_by_field_name("argument"))
    sign = text_of(node.child_by_field_name("operator"))
    if inner is None or sign not in ("-", "+", "~", "!"):
        return None
    apply: dict[str, Callable[[int], int]] = {
        "-": operator.neg,
        "+": operator.pos,
        "~": operator.invert,
        "!": lambda number: int(not number),
    }
    return tuple(apply[sign](number) for number in inner)


def _field(values: LaneValues, node: Node) -> Lanes | None:
    name = text_of(node.child_by_field_name("argument"))
    return values.position(name, text_of(node.child_by_field_name("field")))


def _last_child(values: LaneValues, node: Node) -> Lanes | None:
    """What brackets and casts hold."""
    return values.value(node.named_children[-1]) if node.named_children else None


def _call(values: LaneValues, node: Node) -> Lanes | None:
    name = text_of(node.child_by_field_name("function")).partition("<")[0].rpartition("::")[2]
    given = node.child_by_field_name("arguments")
    arguments = [] if given is None else given.named_children
    if name in _CASTS and len(arguments) == 1:
        return values.value(arguments[0])
    if name in ("min", "max") and len(arguments) == 2:
        left, right = map(values.value, arguments)
        choose = min if name == "min" else max
        return None if left is None or right is None else tuple(map(choose, left, right))
    return None


def _braces(values: LaneValues, node: Node) -> Lanes | None:
    """`size_t{x}`."""
    given = node.child_by_field_name("value")
    inner = given.named_children if given is not None else []
    return values.value(inner[0]) if len(inner) == 1 else None


def _conditional(values: LaneValues, node: Node) -> Lanes | None:
    names = ("condition", "consequence", "alternative")
    parts = [values.value(node.child_by_field_name(name)) for name in names]
    if any(part is None for part in parts):
        return None
    rows = zip(*(part for part in parts if part is not None), strict=True)
    return tuple(yes if condition else no for condition, yes, no in rows)


_HANDLERS: Mapping[str, Callable[[LaneValues, Node], Lanes | None]] = {
    "number_literal": _number,
    "identifier": _identifier,
    "qualified_identifier": _identifier,
    "binary_expression": _binary,
    "unary_expression": _unary,
    "field_expression": _field,
    "parenthesized_expression": _last_child,
    "condition_clause": _last_child,
    "cast_expression": _last_child,
    "call_expression": _call,
    "compound_literal_expression": _braces,
    "conditional_expression": _conditional,
}


def bank_ways(addresses: Sequence[int], item_bytes: int) -> int:
    """How many passes a warp's access to shared memory takes; 1 is no conflict.

    Args:
        addresses: bytes from the array's begin, one a thread.
        item_bytes: of one element; 8 and 16 go in two and four parts of the warp.
    """
    parts = max(1, item_bytes // 4)
    size = max(1, len(addresses) // parts)
    worst = 1
    for first in range(0, len(addresses), size):
        words: dict[int, set[int]] = {}
        for address in addresses[first : first + size]:
            for word in range(address // 4, (address + max(item_bytes, 4) - 1) // 4 + 1):
                words.setdefault(word % WARP, set()).add(word)
        worst = max(worst, max(len(found) for found in words.values()))
    return worst


def sectors(addresses: Sequence[int], item_bytes: int) -> int:
    """How many sectors of 32 bytes a warp's access to global memory touches."""
    touched = {at // 32 for address in addresses for at in (address, address + item_bytes - 1)}
    return len(touched)
