"""Faults for C++ programs: operators that find places in a parsed source, and what to write there instead."""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

ROUNDED = """#include <cstring>
static inline float rounded(double wide) {
  float value = static_cast<float>(wide);
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
"""
"""Rounds to bfloat16; written in front of a source in which something is computed less precisely."""

_FLOATS = ("float", "double")
_STRICTER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


@dataclass(frozen=True)
class Edit:
    """One replacement in a source."""

    start: int
    end: int
    text: str
    head: str = ""
    """Written in front of the whole source."""

    def apply(self, source: bytes) -> bytes:
        """The source with this fault."""
        return self.head.encode() + source[: self.start] + self.text.encode() + source[self.end :]


Operator = Callable[["SourceBody"], Iterator[Edit]]


class SourceBody:
    """The functions of a source that faults may be put into."""

    def __init__(self, source: bytes, functions: tuple[str, ...]) -> None:
        self.source = source
        tree = _parser().parse(source)
        found = [node for node in _walk(tree.root_node) if node.type == "function_definition"]
        self.nodes = [inner for node in found if _name(node) in functions for inner in _walk(node)]

    def of(self, *kinds: str) -> Iterator[Node]:
        """Nodes of these kinds, in order."""
        return (node for node in self.nodes if node.type in kinds)

    def binary(self, *signs: str) -> Iterator[tuple[Node, Node, Node]]:
        """Binary expressions with one of these operators: the node and both sides."""
        for node in self.of("binary_expression"):
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            if left is not None and right is not None and _sign(node) in signs:
                yield node, left, right

    def declared(self) -> Iterator[tuple[Node, Node, Node]]:
        """Floating variables with a first value: the declaration, the declarator and the value."""
        for node in self.of("declaration"):
            kind = node.child_by_field_name("type")
            if kind is None or text(kind) not in _FLOATS:
                continue
            for row in node.named_children:
                value = row.child_by_field_name("value") if row.type == "init_declarator" else None
                if value is not None:
                    yield node, row, value

    def assigned(self) -> Iterator[tuple[Node, Node, Node]]:
        """Assignments to floating variables and to elements: the node and both sides."""
        names = {text(row).partition("=")[0].strip() for _, row, _ in self.declared()}
        for node in self.of("assignment_expression"):
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            if left is None or right is None:
                continue
            if left.type in ("subscript_expression", "field_expression") or text(left) in names:
                yield node, left, right


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_cuda.language()))


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _walk(child)


def text(node: Node) -> str:
    """The source of a node."""
    return (node.text or b"").decode()


def _name(function: Node) -> str:
    for node in _walk(function):
        if node.type == "function_declarator":
            return text(node).partition("(")[0].strip()
    return ""


def _sign(node: Node) -> str:
    sign = node.child_by_field_name("operator")
    return text(sign) if sign is not None else ""


def _replaced(node: Node, new: str, head: str = "") -> Edit:
    return Edit(node.start_byte, node.end_byte, new, head)


def _up(node: Node) -> Iterator[Node]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def _in_index(node: Node) -> bool:
    return any("subscript" in row.type for row in _up(node))


def _in_loop_head(node: Node) -> bool:
    child = node
    for row in _up(node):
        if row.type == "for_statement":
            return row.child_by_field_name("body") != child
        child = row
    return False


def _is_number(node: Node) -> bool:
    return node.type == "number_literal"


def _is_arithmetic(node: Node) -> bool:
    """Whether floating values are computed here, as far as form shows; not in indices and loop heads."""
    if _in_index(node) or _in_loop_head(node):
        return False
    for row in _up(node):
        if row.type == "declaration":
            kind = row.child_by_field_name("type")
            return kind is not None and text(kind) in _FLOATS
        if row.type == "condition_clause":
            return False
        if row.type in ("assignment_expression", "return_statement"):
            return True
    return False


def loop_ends_early(body: SourceBody) -> Iterator[Edit]:
    """The last turn of a loop is left out: a dropped tail."""
    for node in body.of("for_statement"):
        for row in _walk(node.child_by_field_name("condition") or node):
            if row.type == "binary_expression" and _sign(row) == "<":
                right = row.child_by_field_name("right")
                if right is not None:
                    yield _replaced(right, f"({text(right)}) - 1")
                break
    yield from _template_numbers(body, r"using (?:Outer|Inner) = Dims<(?:\d+, )*(\d+)>", -1)


def loop_starts_late(body: SourceBody) -> Iterator[Edit]:
    """The first turn of a loop is left out."""
    for node in body.of("for_statement"):
        first = node.child_by_field_name("initializer")
        for row in _walk(first) if first is not None else ():
            if _is_number(row) and text(row) == "0":
                yield _replaced(row, "1")


def loop_overruns(body: SourceBody) -> Iterator[Edit]:
    """A loop makes one turn too many."""
    for node in body.of("for_statement"):
        condition = node.child_by_field_name("condition")
        if condition is not None and condition.type == "binary_expression" and _sign(condition) == "<":
            sign = condition.child_by_field_name("operator")
            if sign is not None:
                yield _replaced(sign, "<=")


def boundary_shifted(body: SourceBody) -> Iterator[Edit]:
    """< instead of <=, > instead of >=, outside of loop heads."""
    for node, left, _ in body.binary(*_STRICTER):
        sign, around = node.child_by_field_name("operator"), node.parent
        chosen = around.child_by_field_name("consequence") if around is not None else None
        # a > b ? a : b is the same with >=.
        is_extreme = chosen is not None and text(chosen) == text(left)
        if sign is not None and not is_extreme and not _in_loop_head(node):
            yield _replaced(sign, _STRICTER[text(sign)])


def condition_dropped(body: SourceBody) -> Iterator[Edit]:
    """A mask or boundary is not looked at."""
    for node in body.of("if_statement"):
        condition = node.child_by_field_name("condition")
        if condition is not None:
            yield _replaced(condition, "(true)")
    for node in body.of("conditional_expression"):
        chosen = node.child_by_field_name("consequence")
        if chosen is not None:
            yield _replaced(node, f"({text(chosen)})")
    for node, left, _ in body.binary("&&"):
        yield _replaced(node, text(left))


def wrong_epsilon(body: SourceBody) -> Iterator[Edit]:
    """A small constant is ten times larger, or zero."""
    for node in body.of("number_literal"):
        value = _floating(node)
        if value is not None and 0 < value < 1e-3:
            yield _replaced(node, f"{value * 10!r}f")
            yield _replaced(node, "0.0f")


def wrong_constant(body: SourceBody) -> Iterator[Edit]:
    """A constant is off in its fourth digit."""
    for node in body.of("number_literal"):
        value = _floating(node)
        if value is not None and value >= 1e-3:
            yield _replaced(node, f"{value * 1.001!r}f")


def _floating(node: Node) -> float | None:
    try:
        return float(text(node).rstrip("fF")) if re.search(r"[.e]", text(node)) else None
    except ValueError:
        return None


def lower_precision(body: SourceBody) -> Iterator[Edit]:
    """A value is rounded to bfloat16."""
    for _, _, value in body.declared():
        if not _is_number(value) and value.type != "initializer_list":
            yield _replaced(value, f"rounded({text(value)})", ROUNDED)
    for node, left, right in body.assigned():
        if not _is_number(right):
            sign = _sign(node).removesuffix("=")
            new = f"{text(left)} {sign} ({text(right)})" if sign else text(right)
            yield _replaced(node, f"{text(left)} = rounded({new})", ROUNDED)


def stale_value(body: SourceBody) -> Iterator[Edit]:
    """An accumulator keeps what it had before."""
    for node, _, value in body.declared():
        if _is_number(value) or text(value) == "{0}" or "infinity" in text(value):
            yield Edit(node.start_byte, node.start_byte, "static thread_local ")


def wrong_stride(body: SourceBody) -> Iterator[Edit]:
    """A stride is one too small."""
    for node, _, right in body.binary("*"):
        if _in_index(node):
            yield _replaced(right, f"({text(right)} - 1)")
    yield from _template_numbers(body, r"Operand<float, (\d{2,}), 1>", -1)


def wrong_axis(body: SourceBody) -> Iterator[Edit]:
    """Two indices have changed places."""
    for node, left, right in body.binary("+"):
        if _in_index(node) and left.type == "binary_expression" and _sign(left) == "*":
            factor, size = left.child_by_field_name("left"), left.child_by_field_name("right")
            if factor is not None and size is not None and not _is_number(right):
                yield _replaced(node, f"({text(right)}) * {text(size)} + ({text(factor)})")


def index_off_by_one(body: SourceBody) -> Iterator[Edit]:
    """The neighbour of an element is read."""
    for node in body.of("subscript_expression"):
        parent = node.parent
        if parent is not None and parent.child_by_field_name("left") == node and "assign" in parent.type:
            continue
        index = node.named_children[-1]
        inner = index.named_children[0] if index.type == "subscript_argument_list" else index
        yield _replaced(inner, f"{text(inner)} + 1")


def swapped_operands(body: SourceBody) -> Iterator[Edit]:
    """b - a instead of a - b, b / a instead of a / b."""
    for node, left, right in body.binary("-", "/"):
        if _is_arithmetic(node):
            yield _replaced(node, f"({text(right)}) {_sign(node)} ({text(left)})")
    for first, second in (("load<1>", "load<2>"), ("load<2>", "load<1>")):
        for found in re.finditer(re.escape(first.encode()), body.source):
            yield Edit(found.start(), found.end(), second)


def wrong_sign(body: SourceBody) -> Iterator[Edit]:
    """- instead of +."""
    for node, _, _ in body.binary("+"):
        sign = node.child_by_field_name("operator")
        if sign is not None and _is_arithmetic(node):
            yield _replaced(sign, "-")
    for node, _, _ in body.assigned():
        sign = node.child_by_field_name("operator")
        if sign is not None and text(sign) == "+=":
            yield _replaced(sign, "-=")


def missing_max(body: SourceBody) -> Iterator[Edit]:
    """The maximum is not subtracted before an exponential."""
    for node in body.of("call_expression"):
        called, given = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if called is None or given is None or not text(called).endswith("exp"):
            continue
        for row in given.named_children:
            left = row.child_by_field_name("left")
            if row.type == "binary_expression" and _sign(row) == "-" and left is not None:
                yield _replaced(row, text(left))


def missing_factor(body: SourceBody) -> Iterator[Edit]:
    """A scale is left out."""
    for node, left, _ in body.binary("*", "/"):
        if _is_arithmetic(node):
            yield _replaced(node, text(left))


def skipped_bias(body: SourceBody) -> Iterator[Edit]:
    """The bias of the first column is left out."""
    for node in body.of("subscript_expression"):
        base = text(node.named_children[0])
        if base.endswith("bias"):
            index = text(node.named_children[-1]).strip("[]")
            yield _replaced(node, f"(({index}) == 0 ? 0.0f : {text(node)})")


def last_not_written(body: SourceBody) -> Iterator[Edit]:
    """The last turn of the outermost or innermost loop writes nothing."""
    for node in body.of("expression_statement"):
        inner = node.named_children[0] if node.named_children else node
        target = inner.child_by_field_name("left") if inner.type == "assignment_expression" else None
        if target is None or target.type != "subscript_expression":
            continue
        loops = [found for row in _up(node) if (found := _loop(row)) is not None]
        for name, end in dict.fromkeys([*loops[:1], *loops[-1:]]):
            yield _replaced(node, f"if ({name} + 1 != ({end})) {text(node)}")


def _loop(node: Node) -> tuple[str, str] | None:
    """Variable and end of a for loop of single steps."""
    condition = node.child_by_field_name("condition") if node.type == "for_statement" else None
    step = node.child_by_field_name("update") if condition is not None else None
    if condition is None or step is None or "++" not in text(step):
        return None
    if condition.type != "binary_expression" or _sign(condition) != "<":
        return None
    left, right = condition.child_by_field_name("left"), condition.child_by_field_name("right")
    return None if left is None or right is None else (text(left), text(right))


def wrong_modulo(body: SourceBody) -> Iterator[Edit]:
    """A remainder of the number after the next."""
    for node, left, right in body.binary("%"):
        yield _replaced(node, f"({text(left)} + 1) % {text(right)}")


def wrong_extreme(body: SourceBody) -> Iterator[Edit]:
    """The smallest instead of the largest, and the other way round."""
    pairs = {"std::max": "std::min", "std::min": "std::max"}
    for node in body.of("call_expression"):
        called = node.child_by_field_name("function")
        name = text(called).partition("<")[0] if called is not None else ""
        if called is not None and name in pairs:
            yield _replaced(called, text(called).replace(name, pairs[name]))
    for found in re.finditer(rb"using Reduce = (Max)<", body.source):
        yield Edit(found.start(1), found.end(1), "Min")


def overwritten_sum(body: SourceBody) -> Iterator[Edit]:
    """= instead of +=."""
    for node, _, _ in body.assigned():
        sign = node.child_by_field_name("operator")
        if sign is not None and text(sign) in ("+=", "*=", "-="):
            yield _replaced(sign, "=")


def _template_numbers(body: SourceBody, pattern: str, change: int) -> Iterator[Edit]:
    for found in re.finditer(pattern.encode(), body.source):
        yield Edit(found.start(1), found.end(1), str(int(found.group(1)) + change))


OPERATORS: tuple[Operator, ...] = (
    wrong_epsilon,
    missing_max,
    wrong_modulo,
    wrong_extreme,
    boundary_shifted,
    wrong_constant,
    skipped_bias,
    condition_dropped,
    swapped_operands,
    overwritten_sum,
    last_not_written,
    stale_value,
    lower_precision,
    missing_factor,
    wrong_sign,
    wrong_axis,
    wrong_stride,
    index_off_by_one,
    loop_ends_early,
    loop_starts_late,
    loop_overruns,
)
"""Those that fit few programs come first: where there is room for so many faults only, none is left out."""


def edits(source: bytes, functions: tuple[str, ...], at_most: int) -> list[tuple[str, Edit]]:
    """Operators' names and faults: one of each operator first, then further ones, spread over their places.

    Args:
        source: a correct program.
        functions: names of the functions that compute.
        at_most: faults in all.
    """
    body = SourceBody(source, functions)
    places = [[(operator.__name__, edit) for edit in dict.fromkeys(operator(body))] for operator in OPERATORS]
    rounds = [(rows[0::2] + rows[1::2]) if len(rows) > 2 else rows for rows in places]
    found = [row for turn in itertools.zip_longest(*rounds) for row in turn if row is not None]
    return found[:at_most]
