"""What several rules need."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.host import HostCall
from stitch_tools.judge.source.native import NativeUnit, text_of
from stitch_tools.judge.source.rule import Hit, weaken
from stitch_tools.judge.source.scopes import Scope
from stitch_tools.models import Severity


def hit_in(
    scanned: Scanned, scope: Scope, node: ast.AST, message: str, severity: Severity = "suspicious"
) -> Hit:
    """A hit in a Python file; weaker where nothing was seen to run the code."""
    weight = severity if scanned.host.is_reached(scope) else weaken(severity)
    return Hit(scope.unit.file, getattr(node, "lineno", 1), message, weight)


def is_hot(scanned: Scanned, scope: Scope) -> bool:
    """Whether forward reaches the scope."""
    return "forward" in scanned.host.phases.get(scope, ())


def hot_nodes(scanned: Scanned) -> Iterator[tuple[ast.AST, Scope]]:
    """Every node of every function that forward reaches."""
    for scope in scanned.host.hot():
        for node in scope.nodes:
            yield node, scope


def calls_to(scanned: Scanned, paths: frozenset[str] | tuple[str, ...]) -> Iterator[tuple[HostCall, str]]:
    """Calls of these functions of other modules, each with the name that fits."""
    for call in scanned.host.calls:
        for path in call.paths:
            if path in paths:
                yield call, path
                break


def argument(node: ast.Call, place: int, keyword: str) -> ast.expr | None:
    """A call's argument by position or name."""
    if len(node.args) > place:
        return node.args[place]
    return next((row.value for row in node.keywords if row.arg == keyword), None)


def own_names(unit: NativeUnit) -> frozenset[str]:
    """Plain names of the text's own functions and lambdas; calls of them are not the system's."""
    named = [function.name for function in unit.functions]
    for node in unit.of("declaration"):
        for row in node.named_children:
            value = row.child_by_field_name("value") if row.type == "init_declarator" else None
            if value is not None and value.type == "lambda_expression":
                named.append(text_of(row.child_by_field_name("declarator")))
    return frozenset(named)
