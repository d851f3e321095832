"""C++ and CUDA sources in strings of Python files, with lines that point into the Python file."""

import ast
from dataclasses import dataclass

from stitch_tools.judge.source.python_reach import PythonFiles

_MARKS = ("__global__", "#include", "PYBIND11_MODULE", "torch::Tensor", "at::Tensor", 'extern "C"')

_MAX_PARTS = 2_000
_MAX_INSERTED = 200


@dataclass(frozen=True)
class EmbeddedSource:
    """One source text."""

    node: ast.expr
    """The literal."""
    file: str
    text: str

    def line(self, number: int) -> int:
        """The Python file's line of this text's line `number`, which counts from 0."""
        span = (self.node.end_lineno or self.node.lineno) - self.node.lineno
        if span == self.text.count("\n") + 1:  # a backslash after the opening quotes
            return self.node.lineno + 1 + number
        return self.node.lineno + min(number, span)


def find_embedded(program: PythonFiles) -> list[EmbeddedSource]:
    """Literals that look like C++. A part of a concatenation is a source of its own: rules see them all."""
    inner: set[ast.AST] = {node.value for node, _ in program.of(ast.Expr)}  # docstrings
    inner |= {part for node, _ in program.of(ast.JoinedStr) for part in node.values}
    found: list[EmbeddedSource] = []
    for node, scope in (*program.of(ast.Constant), *program.of(ast.JoinedStr)):
        text = node.value if isinstance(node, ast.Constant) else ""
        if isinstance(node, ast.JoinedStr):
            # What is not constant is most often a block size: any number lets the rest be parsed.
            parts = [program.names.text(part, scope) or "1" for part in node.values[:_MAX_PARTS]]
            # A long text that is inserted is a source of its own.
            is_own = [not isinstance(part, ast.FormattedValue) for part in node.values]
            rows = zip(parts, is_own, strict=False)
            text = "".join(part if own or len(part) < _MAX_INSERTED else "" for part, own in rows)
        if isinstance(text, str) and node not in inner and any(mark in text for mark in _MARKS):
            found.append(EmbeddedSource(node, scope.file, text))
    return found
