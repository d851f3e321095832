"""A copy of the reference's code in the program. The sandbox holds neither its file nor its module."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.program import RuleHit, ScannedProgram, SourceRule, hit_in
from stitch_tools.judge.source.python_scopes import FunctionNode, parse_python
from stitch_tools.judge.source.rules_pytorch import operation


def find_copies(program: ScannedProgram) -> Iterator[RuleHit]:
    """Functions on the hot path that are the reference's word for word and compute with PyTorch."""
    wanted = _bodies_of(program.reference_source)
    # A forward that only calls helpers may be the same honestly.
    computing = {call.scope for call in program.python.calls if operation(call) is not None}
    for scope in program.python.scopes if wanted else ():
        is_used = scope in program.python.hot and scope in computing
        if is_used and isinstance(scope.node, FunctionNode) and _body(scope.node) in wanted:
            yield hit_in(program, scope, scope.node, f"{scope.name} is the reference's code, word for word")


def _bodies_of(source: bytes | None) -> set[str]:
    try:
        tree = parse_python(source or b"")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {_body(node) for node in ast.walk(tree) if isinstance(node, FunctionNode)} - {""}


def _body(node: FunctionNode) -> str:
    """The statements as text, without docstrings and positions."""
    rows = [
        row for row in node.body if not isinstance(row, ast.Expr) or not isinstance(row.value, ast.Constant)
    ]
    try:
        return "\n".join(ast.dump(row) for row in rows)
    except RecursionError:
        return ""


RULES = (SourceRule("reference_copied", "suspicious", find_copies),)
