"""C++ and CUDA sources as a parsed tree: functions and calls.

tree-sitter-cuda stumbles over some attribute macros. They are blanked at equal length first, so that lines
and columns stay true. Whatever still does not parse is listed, and everything around it is used.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import cache, cached_property

from tree_sitter import Language, Node, Parser, TreeCursor

from stitch_tools.judge.source.cuda_attributes import blank_attributes
from stitch_tools.judge.source.words import words

_KEPT = words("declaration comment identifier qualified_identifier preproc_arg ERROR")


@dataclass(frozen=True, eq=False)
class CudaFunction:
    """One function with a body."""

    name: str
    """Without namespaces."""
    node: Node
    body: Node
    is_kernel: bool
    is_static: bool


@dataclass(frozen=True, eq=False)
class CudaCall:
    """One call."""

    name: str
    """As written, without template arguments: `at::relu`, `matmul` of `x.matmul`."""
    is_method: bool
    node: Node
    function: CudaFunction | None
    """The function around it."""

    @property
    def short(self) -> str:
        """The name without namespaces."""
        return self.name.rpartition("::")[2]

    @property
    def arguments(self) -> list[Node]:
        """The arguments' nodes."""
        given = self.node.child_by_field_name("arguments")
        return [] if given is None else given.named_children

    @property
    def texts(self) -> list[str]:
        """The content of each argument that is a literal; empty for the others."""
        return [unquoted(text_of(part)) for part in self.arguments]


@dataclass(eq=False)
class CudaSource:
    """One source text: a file, or a string in a Python file."""

    file: str
    text: bytes
    """With spaces in place of attributes that the grammar does not know."""
    line_of: Callable[[int], int]
    """From a line of this text, counted from 0, to a line of the file, counted from 1."""
    nodes: dict[str, list[Node]] = field(default_factory=dict[str, list[Node]])
    functions: list[CudaFunction] = field(default_factory=list[CudaFunction])
    calls: list[CudaCall] = field(default_factory=list[CudaCall])
    owners: dict[int, CudaFunction] = field(default_factory=dict[int, CudaFunction])
    """The innermost function around a node, by the node's id."""

    @cached_property
    def own_names(self) -> set[str]:
        """Names of the text's own functions; calls of them are not the system's."""
        return {function.name for function in self.functions}

    def line(self, node: Node) -> int:
        """The line in the file, from 1."""
        return self.line_of(node.start_point[0])

    def of(self, kind: str) -> list[Node]:
        """All nodes of this kind, of those that are kept."""
        return self.nodes.get(kind, [])


def text_of(node: Node | None) -> str:
    """The node's source text."""
    return (node.text or b"").decode("utf-8", "replace") if node is not None else ""


def unquoted(text: str) -> str:
    """The content of a C++ literal; empty for anything else."""
    return text.strip('"').replace('\\"', '"').replace("\\n", "\n") if text.startswith('"') else ""


def identifiers(text: str) -> list[str]:
    """Names in a text, with their namespaces."""
    return "".join(char if char.isalnum() or char in "_:" else " " for char in text).split()


def parse_cuda(file: str, data: bytes, line_of: Callable[[int], int], macros: Set[str]) -> CudaSource:
    """The parsed text; never fails, whatever the bytes."""
    source = CudaSource(file, blank_attributes(data, macros), line_of)
    cursor = Parser(_language()).parse(source.text).root_node.walk()
    around: list[tuple[int, CudaFunction]] = []  # functions that the walk is in, each with its depth
    # A cursor needs no stack of ours, however deep the tree is.
    while True:
        if cursor.node is not None:
            _take(source, cursor, cursor.node, around)
        if cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return source
        while around and around[-1][0] >= cursor.depth:
            around.pop()


@cache
def _language() -> Language:
    import tree_sitter_cuda

    return Language(tree_sitter_cuda.language())


def _take(source: CudaSource, cursor: TreeCursor, node: Node, around: list[tuple[int, CudaFunction]]) -> None:
    """Keep what rules look at; an identifier that is only declared is no use of its name."""
    kind = node.type
    # Asking a node for its parent searches from the root, which is quadratic in a long file.
    if kind in _KEPT and (kind != "identifier" or cursor.field_name != "declarator"):
        source.nodes.setdefault(kind, []).append(node)
        if around:
            source.owners[node.id] = around[-1][1]
    if kind == "function_definition":
        function = _function(node)
        if function is not None:
            source.functions.append(function)
            around.append((cursor.depth, function))
    elif kind == "call_expression":
        target = node.child_by_field_name("function")
        is_method = target is not None and target.type == "field_expression"
        if target is not None and is_method:
            target = target.child_by_field_name("field") or target
        name = "".join(text_of(target).partition("<")[0].split())
        source.calls.append(CudaCall(name, is_method, node, around[-1][1] if around else None))


def _function(node: Node) -> CudaFunction | None:
    body = node.child_by_field_name("body")
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        inner = declarator.child_by_field_name("declarator")
        declarator = inner or next(
            (row for row in declarator.named_children if row.type.endswith("declarator")), None
        )
    if body is None or declarator is None:
        return None
    name = text_of(declarator.child_by_field_name("declarator")).partition("<")[0].rpartition("::")[2].strip()
    head = {text_of(row) for row in node.children if row.end_byte <= declarator.start_byte}
    is_kernel = "__global__" in head
    return CudaFunction(name, node, body, is_kernel, "static" in head)
