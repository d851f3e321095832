"""Scopes of a Python file: which names are bound where, and to which expressions.

Flow is not followed: a name stands for everything that is bound to it anywhere in its scope. Nothing here
recurses, so nesting costs no stack.
"""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from stitch_tools.judge.source.values import Known, Value

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
ScopeNode = ast.Module | FunctionNode | ast.ClassDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, eq=False)
class Binding:
    """One thing that a name is bound to: an expression, or a value that is known already."""

    expr: ast.expr | None = None
    scope: "Scope | None" = None
    how: Literal["value", "element", "item"] = "value"
    """`element`: one of what the expression iterates over; `item`: stored under a key of the name."""
    value: Value | None = None
    index: int | None = None
    """Position, where the expression is unpacked."""
    node: ast.AST | None = None
    """The function or class that is defined."""


@dataclass(eq=False)
class Scope:
    """A module, function, lambda or class body."""

    unit: "Unit"
    node: ScopeNode
    parent: "Scope | None"
    names: dict[str, list[Binding]] = field(default_factory=dict[str, list[Binding]])
    nodes: list[ast.AST] = field(default_factory=list[ast.AST])
    """Everything inside that belongs to no inner scope."""
    outer: set[str] = field(default_factory=set[str])
    """Names declared `global`."""
    enclosing: set[str] = field(default_factory=set[str])
    """Names declared `nonlocal`."""

    @property
    def name(self) -> str:
        """The name it was defined with."""
        return "lambda" if isinstance(self.node, ast.Lambda) else getattr(self.node, "name", "")

    @property
    def params(self) -> list[str]:
        """Positional parameters, then the rest."""
        if not isinstance(self.node, FunctionNode):
            return []
        given = self.node.args
        extra = [given.vararg, given.kwarg]
        return [
            row.arg for row in (*given.posonlyargs, *given.args, *given.kwonlyargs, *extra) if row is not None
        ]

    @property
    def owner(self) -> "Scope | None":
        """The class whose method this is."""
        parent = self.parent
        return parent if parent is not None and isinstance(parent.node, ast.ClassDef) else None

    def bind(self, name: str, binding: Binding) -> None:
        """Add a binding; a name declared global is bound in the module."""
        target = self.unit.module if name in self.outer else self
        target.names.setdefault(name, []).append(binding)


@dataclass(eq=False)
class Unit:
    """One parsed Python file, or one text given to `exec`."""

    file: str
    dotted: str
    """The name that it is imported by inside the program."""
    tree: ast.Module
    scopes: list[Scope] = field(default_factory=list[Scope])
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict[ast.AST, ast.AST])
    scope_of: dict[ast.AST, Scope] = field(default_factory=dict[ast.AST, Scope])
    """Of functions and classes: their own scope."""
    stars: list[str] = field(default_factory=list[str])
    """Modules of `from x import *`."""

    @property
    def module(self) -> Scope:
        """The outermost scope."""
        return self.scopes[0]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around `node`, inside out."""
        current = self.parents.get(node)
        while current is not None:
            yield current
            current = self.parents.get(current)


def parse_python(text: str) -> ast.Module:
    """The tree.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it does not parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def build_unit(file: str, dotted: str, tree: ast.Module) -> Unit:
    """The unit with its scopes."""
    unit = Unit(file, dotted, tree)
    root = Scope(unit, tree, None)
    unit.scopes.append(root)
    extend_scope(root, tree.body)
    return unit


def extend_scope(scope: Scope, body: list[ast.stmt], around: ast.AST | None = None) -> None:
    """Add statements to a scope, as `exec` does; `around` becomes their parent."""
    unit = scope.unit
    work: list[tuple[ast.AST, Scope, ast.AST]] = [
        (node, scope, around or scope.node) for node in reversed(body) if not _is_dead(node)
    ]
    while work:
        node, where, parent = work.pop()
        if isinstance(node, ast.expr_context | ast.operator | ast.unaryop | ast.cmpop | ast.boolop):
            continue
        unit.parents[node] = parent
        where.nodes.append(node)
        _declare(node, where)
        if isinstance(node, _SCOPES):
            inner = Scope(unit, node, where)
            unit.scopes.append(inner)
            unit.scope_of[node] = inner
            _bind_defaults(node, inner, where)
            work.extend((child, where, node) for child in _outside(node))
            work.extend((child, inner, node) for child in reversed(_inside(node)) if not _is_dead(child))
        else:
            children = [child for child in ast.iter_child_nodes(node) if not _is_dead(child)]
            work.extend((child, where, node) for child in reversed(children))


def _bind_defaults(node: ScopeNode, inner: Scope, outer: Scope) -> None:
    """A parameter may be its default."""
    if not isinstance(node, FunctionNode):
        return
    given = node.args
    rows = [*given.posonlyargs, *given.args]
    with_default = rows[len(rows) - len(given.defaults) :]
    pairs = [*zip(with_default, given.defaults, strict=True)]
    pairs += [(row, value) for row, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value]
    for row, value in pairs:
        inner.bind(row.arg, Binding(value, outer))


def _is_dead(node: ast.AST) -> bool:
    """Whether a statement never runs in an imported file: `if __name__ == "__main__"`, `if False`."""
    if not isinstance(node, ast.If) or node.orelse:
        return False
    test = node.test
    if isinstance(test, ast.Constant):
        return not test.value
    if isinstance(test, ast.Name | ast.Attribute):
        return (test.id if isinstance(test, ast.Name) else test.attr) == "TYPE_CHECKING"
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__":
        other = test.comparators[0]
        is_main = isinstance(other, ast.Constant) and other.value == "__main__"
        return is_main and isinstance(test.ops[0], ast.Eq)
    return False


def _outside(node: ast.AST) -> list[ast.AST]:
    """Parts of a definition that are evaluated where it stands."""
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *node.keywords]
    if isinstance(node, ast.Lambda):
        return [*node.args.defaults, *(row for row in node.args.kw_defaults if row is not None)]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        defaults = (*node.args.defaults, *(row for row in node.args.kw_defaults if row is not None))
        return [*node.decorator_list, *defaults]
    return []


def _inside(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Lambda):
        return [node.body]
    return list(getattr(node, "body", []))


def _declare(node: ast.AST, scope: Scope) -> None:
    """Record what a node binds."""
    match node:
        case ast.Import() | ast.ImportFrom():
            _declare_import(node, scope)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            scope.bind(node.name, Binding(node=node, scope=scope))
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                _assign(target, Binding(value, scope), scope)
        case ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr():
            if node.value is not None:
                _assign(node.target, Binding(node.value, scope), scope)
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            _assign(node.target, Binding(node.iter, scope, "element"), scope)
        case ast.withitem(context_expr=source, optional_vars=ast.expr() as target):
            _assign(target, Binding(source, scope), scope)
        case ast.Global() | ast.Nonlocal():
            (scope.outer if isinstance(node, ast.Global) else scope.enclosing).update(node.names)
        case _:
            pass


def _declare_import(node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            path = alias.name if alias.asname else alias.name.split(".")[0]
            scope.bind(alias.asname or path, Binding(value=Known(path)))
        return
    base = node.module or ""
    if node.level:
        above = scope.unit.dotted.split(".")[: -node.level]
        base = ".".join([*above, base] if base else above)
    for alias in node.names:
        if alias.name == "*":
            scope.unit.stars.append(base)
        else:
            scope.bind(alias.asname or alias.name, Binding(value=Known(f"{base}.{alias.name}".lstrip("."))))


def _assign(target: ast.expr, binding: Binding, scope: Scope) -> None:
    waiting = [(target, binding)]
    while waiting:
        current, bound = waiting.pop()
        if isinstance(current, ast.Name):
            scope.bind(current.id, bound)
        elif isinstance(current, ast.Subscript) and isinstance(current.value, ast.Name):
            name = current.value.id
            holder = _holder(scope, name)
            holder.names.setdefault(name, []).append(Binding(bound.expr, scope, "item", bound.value))
        elif isinstance(current, ast.Starred):
            waiting.append((current.value, bound))
        elif isinstance(current, ast.Tuple | ast.List):
            for place, part in enumerate(current.elts):
                waiting.append((part, Binding(bound.expr, bound.scope, bound.how, bound.value, place)))


def _holder(scope: Scope, name: str) -> Scope:
    """The scope whose name a store under a key changes."""
    current: Scope | None = scope
    while current is not None:
        if name in current.names and name not in current.outer:
            return current
        current = current.parent
    return scope.unit.module if scope.names.get(name) is None else scope
