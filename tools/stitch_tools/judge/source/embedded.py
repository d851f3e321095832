"""C++ and CUDA sources that stand in strings of Python files, with lines that point into the Python file."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from stitch_tools.judge.source.host import HostProgram
from stitch_tools.judge.source.scopes import Scope

_MARKS = ("__global__", "#include", "PYBIND11_MODULE", "torch::Tensor", "at::Tensor", 'extern "C"')
_SOURCE_KEYWORDS = ("cpp_sources", "cuda_sources", "cpp_source", "cuda_source", "code", "source")
_INLINE = ("load_inline", "RawKernel", "RawModule", "_compile_kernel", "compile_kernel", "Program")
_TEMPLATE_METHODS = ("format", "replace", "substitute", "safe_substitute", "strip", "lstrip", "rstrip")
_MAX_DEPTH = 30
_MAX_STEPS = 2_000


@dataclass(frozen=True)
class Embedded:
    """One source text."""

    file: str
    text: str
    lines: tuple[int, ...]
    """The Python file's line, for each line of the text."""


@dataclass(frozen=True)
class Unresolved:
    """A source argument whose text is not constant."""

    file: str
    line: int


@dataclass(frozen=True)
class _Piece:
    text: str
    line: int
    span: int
    """Lines that the literal covers, beyond the first."""


class Sources:
    """All sources in the strings of one program."""

    def __init__(self, host: HostProgram) -> None:
        self.host = host
        self.literals: set[ast.AST] = set()
        """Literals that are parts of a source."""
        self._tried: list[ast.AST] = []
        self._steps = 0
        self.unresolved: list[Unresolved] = []
        self.found: list[Embedded] = []
        for call in host.calls:
            name = call.method or (call.node.func.id if isinstance(call.node.func, ast.Name) else "")
            if name in _INLINE or any(path.endswith(_INLINE) for path in call.paths):
                for argument in _source_arguments(call.node):
                    self._take_argument(argument, call.scope)
        for scope in host.scopes():
            for node in scope.nodes:
                if isinstance(node, ast.Constant | ast.JoinedStr) and node not in self.literals:
                    self._take_literal(node, scope)

    def _take_argument(self, argument: ast.expr, scope: Scope) -> None:
        parts = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
        for part in parts:
            self._begin()
            pieces = self._pieces(part, scope, 0)
            if pieces is None:
                self.unresolved.append(Unresolved(scope.unit.file, part.lineno))
            elif any(piece.text.strip() for piece in pieces):
                self._add(scope.unit.file, pieces)

    def _begin(self) -> None:
        self._tried.clear()
        self._steps = 0

    def _take_literal(self, node: ast.Constant | ast.JoinedStr, scope: Scope) -> None:
        if isinstance(scope.unit.parents.get(node), ast.Expr | ast.JoinedStr):
            return
        self._begin()
        pieces = self._pieces(node, scope, 0) if _is_text(node) else None
        if pieces and any(mark in piece.text for piece in pieces for mark in _MARKS):
            self._add(scope.unit.file, pieces)

    def _add(self, file: str, pieces: list[_Piece]) -> None:
        self.literals.update(self._tried)
        lines: list[int] = []
        for piece in pieces:
            rows = [_line(piece, number) for number in range(piece.text.count("\n") + 1)]
            lines += rows if not lines else rows[1:]
        self.found.append(Embedded(file, "".join(piece.text for piece in pieces), tuple(lines)))

    def _pieces(self, expr: ast.expr, scope: Scope, depth: int) -> list[_Piece] | None:
        self._steps += 1
        if depth > _MAX_DEPTH or self._steps > _MAX_STEPS:
            return None
        match expr:
            case ast.Constant(value=str() as text):
                self._tried.append(expr)
                return [_Piece(text, expr.lineno, (expr.end_lineno or expr.lineno) - expr.lineno)]
            case ast.JoinedStr():
                return self._joined(expr, scope)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                first, second = (self._pieces(part, scope, depth + 1) for part in (left, right))
                return None if first is None or second is None else first + second
            case ast.BinOp(op=ast.Mod(), left=left):
                return self._pieces(left, scope, depth + 1)
            case ast.Name() | ast.Attribute():
                return self._named(expr, scope, depth)
            case ast.Call():
                return self._called(expr, scope, depth)
            case _:
                return self._folded(expr, scope)

    def _joined(self, expr: ast.JoinedStr, scope: Scope) -> list[_Piece]:
        """An f-string; what is not constant in it becomes a number, as block sizes are."""
        text = ""
        for part in expr.values:
            self._tried.append(part)
            value = self.host.resolver.constant(part, scope)
            text += str(value) if isinstance(value, str | int | float) else "1"
        self._tried.append(expr)
        return [_Piece(text, expr.lineno, (expr.end_lineno or expr.lineno) - expr.lineno)]

    def _named(self, expr: ast.Name | ast.Attribute, scope: Scope, depth: int) -> list[_Piece] | None:
        if isinstance(expr, ast.Name):
            current: Scope | None = scope
            while current is not None:
                rows = [row for row in current.names.get(expr.id, ()) if row.how == "value"]
                if rows:
                    found: list[_Piece] = []
                    for row in rows[:8]:
                        if row.expr is None or row.scope is None or row.index is not None:
                            return self._folded(expr, scope)
                        found += self._pieces(row.expr, row.scope, depth + 1) or []
                    return found or None
                current = current.parent
        return self._folded(expr, scope)

    def _called(self, expr: ast.Call, scope: Scope, depth: int) -> list[_Piece] | None:
        folded = self._folded(expr, scope)
        if folded is not None:
            return folded
        if isinstance(expr.func, ast.Attribute) and expr.func.attr in _TEMPLATE_METHODS:
            found = self._pieces(expr.func.value, scope, depth + 1)
            if found is not None or not expr.args:
                return found
        paths = self.host.resolver.paths(expr.func, scope)
        if expr.args and any(
            path in ("textwrap.dedent", "string.Template", "inspect.cleandoc") for path in paths
        ):
            return self._pieces(expr.args[0], scope, depth + 1)
        return None

    def _folded(self, expr: ast.expr, scope: Scope) -> list[_Piece] | None:
        value = self.host.resolver.constant(expr, scope)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        return [_Piece(value, expr.lineno, 0)] if isinstance(value, str) else None


def _source_arguments(node: ast.Call) -> Iterator[ast.expr]:
    is_method = isinstance(node.func, ast.Attribute | ast.Name)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "load_inline" or not is_method:
        yield from node.args[1:3]
    else:
        yield from node.args[:1]
    for row in node.keywords:
        if row.arg in _SOURCE_KEYWORDS:
            yield row.value


def _is_text(node: ast.Constant | ast.JoinedStr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(node.value, str)


def _line(piece: _Piece, number: int) -> int:
    """The file's line of the piece's line `number`."""
    breaks = piece.text.count("\n")
    if piece.span == breaks + 1:  # a backslash after the opening quotes
        return piece.line + 1 + number
    return piece.line + min(number, piece.span)
