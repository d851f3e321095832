"""What runs when the program's own kernels fail."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.native_torch import native_operations
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.rules.common import hit_in, is_hot
from stitch_tools.judge.source.rules.reference import reference_calls
from stitch_tools.judge.source.rules.torch_ops import kind_of, operation
from stitch_tools.judge.source.scopes import Scope
from stitch_tools.judge.source.torch_names import op_kind


def find_fallbacks(scanned: Scanned) -> Iterator[Hit]:
    """Exception handlers that compute with PyTorch, or that hide a failed build."""
    work = _work_lines(scanned)
    for scope in scanned.host.scopes():
        for node in scope.nodes:
            if isinstance(node, ast.Try | ast.TryStar):
                for handler in node.handlers:
                    yield from _judge(scanned, scope, handler, work)
    for unit, node, name in native_operations(scanned):
        for clause in unit.of("catch_clause"):
            if clause.start_byte <= node.start_byte < clause.end_byte and op_kind(name) == "compute":
                yield Hit(
                    unit.file, unit.line(clause), f"when a kernel fails, PyTorch's {name} computes instead"
                )


def _work_lines(scanned: Scanned) -> dict[ast.AST, str]:
    """Calls that compute with PyTorch or the reference."""
    found: dict[ast.AST, str] = {}
    for call in scanned.host.calls:
        named = operation(call)
        if named is not None and kind_of(named[0]) == "compute":
            found[call.node] = named[0]
    found |= {call.node: "the reference" for call in reference_calls(scanned)}
    return found


def _judge(
    scanned: Scanned, scope: Scope, handler: ast.ExceptHandler, work: dict[ast.AST, str]
) -> Iterator[Hit]:
    if isinstance(handler.body[-1], ast.Raise):
        return
    inside = [work[node] for node in ast.walk(handler) if node in work]
    if inside:
        message = f"when something fails, {inside[0]} computes instead, and nobody is told"
        yield hit_in(scanned, scope, handler, message)
    elif is_hot(scanned, scope):
        returns = any(isinstance(node, ast.Return) for node in ast.walk(handler))
        what = "returns something else" if returns else "goes on"
        yield hit_in(scanned, scope, handler, f"forward swallows an exception and {what}", "note")
    elif _hides_build(scanned, scope, handler):
        message = "a kernel that does not build is passed over in silence"
        yield hit_in(scanned, scope, handler, message)


def _hides_build(scanned: Scanned, scope: Scope, handler: ast.ExceptHandler) -> bool:
    around = scope.unit.parents.get(handler)
    tried = around.body if isinstance(around, ast.Try | ast.TryStar) else []
    inside = {node for statement in tried for node in ast.walk(statement)}
    return any(
        call.node in inside and any(path.startswith("torch.utils.cpp_extension.") for path in call.paths)
        for call in scanned.host.calls
        if call.scope is scope
    )


RULES = (
    Rule(
        "fallback_in_handler",
        "suspicious",
        "An exception handler computes with PyTorch or the reference, or hides that a kernel did not "
        "build. A "
        "handler that raises again is fine; one in forward that only goes on is a note.",
        "Let the exception out: a program that cannot run here says so by failing.",
        find_fallbacks,
    ),
)
