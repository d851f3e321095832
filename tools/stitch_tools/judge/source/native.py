"""C++ and CUDA sources as a parsed tree: functions, calls and launches.

tree-sitter-cuda stumbles over some attribute macros. They are blanked at equal length first, so that lines
and columns stay true. Whatever still does not parse is listed, and everything around it is used.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from tree_sitter import Language, Node, Parser

from stitch_tools.judge.source.attributes import NO_MACROS, Macros, blank_attributes
from stitch_tools.judge.source.words import words

_KEPT = words("""
    function_definition call_expression declaration field_declaration if_statement catch_clause
    return_statement initializer_list string_literal raw_string_literal comment binary_expression
    assignment_expression update_expression identifier field_identifier qualified_identifier
    parameter_declaration namespace_alias_definition preproc_include preproc_arg
    using_declaration asm_statement gnu_asm_expression ERROR
""")


_SPACES = words("namespace_definition struct_specifier class_specifier")


@dataclass(frozen=True, eq=False)
class Function:
    """One function with a body."""

    name: str
    """Without namespaces."""
    node: Node
    body: Node
    is_kernel: bool
    is_device: bool
    is_static: bool
    in_namespace: bool

    def holds(self, node: Node) -> bool:
        """Whether `node` lies inside the function."""
        return self.node.start_byte <= node.start_byte and node.end_byte <= self.node.end_byte


@dataclass(frozen=True, eq=False)
class Call:
    """One call."""

    name: str
    """As written, without template arguments: `at::relu`, `matmul` of `x.matmul`."""
    is_method: bool
    is_launch: bool
    node: Node
    function: Function | None
    """The function around it."""

    @property
    def short(self) -> str:
        """The name without namespaces."""
        return self.name.rpartition("::")[2]

    @property
    def arguments(self) -> list[Node]:
        """The arguments' nodes."""
        given = self.node.child_by_field_name("arguments")
        if given is None:
            given = next((row for row in self.node.children if row.type == "argument_list"), None)
        return [] if given is None else given.named_children


@dataclass(eq=False)
class NativeUnit:
    """One source text."""

    file: str
    source: bytes
    """With attribute macros blanked."""
    line_of: Callable[[int], int]
    """From a line of this text, counted from 0, to a line of the file, counted from 1."""
    embedded: bool = False
    """Whether it stood in a string of a Python file."""
    nodes: dict[str, list[Node]] = field(default_factory=dict[str, list[Node]])
    functions: list[Function] = field(default_factory=list[Function])
    calls: list[Call] = field(default_factory=list[Call])
    owners: dict[int, Function] = field(default_factory=dict[int, Function])
    """The innermost function around a node, by the node's id."""

    @cached_property
    def uses_aten(self) -> bool:
        """Whether the source includes or names PyTorch's C++ interface."""
        if any(mark in self.source for mark in (b"torch::", b"at::", b"ATen")):
            return True
        return any("torch/" in text_of(node) for node in self.of("preproc_include"))

    def line(self, node: Node) -> int:
        """The line in the file, from 1."""
        return self.line_of(node.start_point[0])

    def of(self, *kinds: str) -> Iterator[Node]:
        """All nodes of these kinds."""
        for kind in kinds:
            yield from self.nodes.get(kind, ())

    def around(self, node: Node) -> Function | None:
        """The innermost function that holds the node."""
        return self.owners.get(node.id)


def inside(node: Node, *kinds: str) -> Iterator[Node]:
    """The node's descendants of these kinds."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current.type in kinds:
            yield current
        waiting.extend(current.named_children)


def text_of(node: Node | None) -> str:
    """The node's source text."""
    return (node.text or b"").decode("utf-8", "replace") if node is not None else ""


def parse_native(
    file: str,
    source: bytes,
    line_of: Callable[[int], int] | None = None,
    *,
    embedded: bool = False,
    macros: Macros = NO_MACROS,
) -> NativeUnit:
    """The parsed text; never fails, whatever the bytes."""
    blanked = blank_attributes(source, macros)
    unit = NativeUnit(file, blanked.text, line_of or (lambda line: line + 1), embedded)
    tree = Parser(_language()).parse(blanked.text)
    _walk(unit, tree.root_node)
    for mark in blanked.kernels:
        _mark_kernel(unit, mark)
    return unit


def _mark_kernel(unit: NativeUnit, mark: int) -> None:
    """Make the function whose head begins at `mark` a kernel."""
    for place, function in enumerate(unit.functions):
        between = unit.source[mark : function.body.start_byte]
        if function.body.start_byte > mark and not any(char in b";{}" for char in between):
            kernel = replace(function, is_kernel=True)
            unit.functions[place] = kernel
            unit.owners.update({key: kernel for key, row in unit.owners.items() if row is function})
            unit.calls[:] = [
                replace(row, function=kernel) if row.function is function else row for row in unit.calls
            ]
            return


@cache
def _language() -> Language:
    import tree_sitter_cuda

    return Language(tree_sitter_cuda.language())


def _walk(unit: NativeUnit, root: Node) -> None:
    """Fill the unit's lists in one pass that needs no stack of ours for deep trees."""
    cursor = root.walk()
    around = _Around()
    while True:
        if cursor.node is not None:
            _take(unit, cursor.node, cursor.depth, around)
        if cursor.goto_first_child():
            continue
        around.leave(cursor.depth)
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return
            around.leave(cursor.depth)


@dataclass(eq=False)
class _Around:
    """What the walk is inside of, with the depth where each began."""

    functions: list[tuple[int, Function]] = field(default_factory=list[tuple[int, Function]])
    spaces: list[int] = field(default_factory=list[int])

    def leave(self, depth: int) -> None:
        """Forget what began at this depth or below."""
        while self.functions and self.functions[-1][0] >= depth:
            self.functions.pop()
        while self.spaces and self.spaces[-1] >= depth:
            self.spaces.pop()


def _take(unit: NativeUnit, node: Node, depth: int, around: _Around) -> None:
    kind = node.type
    if kind in _KEPT:
        unit.nodes.setdefault(kind, []).append(node)
        if around.functions:
            unit.owners[node.id] = around.functions[-1][1]
    if kind == "function_definition":
        function = _function(node, bool(around.spaces))
        if function is not None:
            unit.functions.append(function)
            around.functions.append((depth, function))
    elif kind == "call_expression":
        call = _call(node, around.functions[-1][1] if around.functions else None)
        if call is not None:
            unit.calls.append(call)
    elif kind in _SPACES:
        around.spaces.append(depth)


def _function(node: Node, in_namespace: bool) -> Function | None:
    body = node.child_by_field_name("body")
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        inner = declarator.child_by_field_name("declarator")
        declarator = inner or next(
            (row for row in declarator.named_children if row.type.endswith("declarator")), None
        )
    if body is None or declarator is None:
        return None
    name = text_of(declarator.child_by_field_name("declarator")).split("<")[0].rpartition("::")[2].strip()
    head = {text_of(row) for row in node.children if row.end_byte <= declarator.start_byte}
    return Function(
        name,
        node,
        body,
        "__global__" in head,
        "__device__" in head and "__host__" not in head,
        "static" in head,
        in_namespace,
    )


def _call(node: Node, function: Function | None) -> Call | None:
    target = node.child_by_field_name("function")
    if target is None:
        return None
    is_launch = any(row.type == "kernel_call_syntax" for row in node.children)
    is_method = target.type == "field_expression"
    if is_method:
        target = target.child_by_field_name("field") or target
    name = "".join(text_of(target).split("<")[0].split())
    return Call(name, is_method, is_launch, node, function) if name else None
