"""Scopes of a Python file: which nodes belong to which function, and what each name is bound to.

Statement order is ignored: a name stands for everything that its scope binds to it. Nothing here recurses,
because a program may nest more deeply than our stack.
"""

import ast
import warnings
from dataclasses import dataclass, field

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode = ast.Module | ast.ClassDef | FunctionNode
Binding = str | ast.expr
"""A dotted name (of an import, or `.f` for the program's own `f`), or the expression that was assigned."""
_MARKERS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)


@dataclass(eq=False)
class Scope:
    """A module, class or function body. A lambda belongs to the scope around it."""

    file: str
    node: ScopeNode
    parent: "Scope | None"
    names: dict[str, list[Binding]] = field(default_factory=dict[str, list[Binding]])
    """Of a class also `self.x`. A parameter without default has no binding."""
    nodes: list[ast.AST] = field(default_factory=list[ast.AST])
    """Everything inside that belongs to no inner scope."""
    inner: dict[str, list["Scope"]] = field(default_factory=dict[str, list["Scope"]])
    """Functions and classes inside, by name; there may be several of one name."""
    stars: list[str] = field(default_factory=list[str])
    """Modules of `from x import *`."""
    declared_global: set[str] = field(default_factory=set[str])

    @property
    def name(self) -> str:
        """The name it was defined with; empty for a module."""
        return "" if isinstance(self.node, ast.Module) else self.node.name

    @property
    def module(self) -> "Scope":
        """The file's outermost scope."""
        return self if self.parent is None else self.parent.module

    @property
    def owner(self) -> "Scope | None":
        """The innermost class around a function."""
        current = self.parent
        while current is not None and not isinstance(current.node, ast.ClassDef):
            current = current.parent
        return current

    def bind(self, name: str, binding: Binding) -> None:
        """Add what a name may stand for."""
        target = self.module if name in self.declared_global else self
        target.names.setdefault(name, []).append(binding)


def parse_python(source: bytes) -> ast.Module:
    """The tree; of any encoding that Python itself reads.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it does not parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def read_scopes(path: str, tree: ast.Module) -> list[Scope]:
    """The file's scopes, the module first."""
    root = Scope(path, tree, None)
    scopes = [root]
    work: list[tuple[ast.AST, Scope]] = [(node, root) for node in reversed(tree.body)]
    while work:
        node, scope = work.pop()
        if isinstance(node, _MARKERS) or _is_dead(node):
            continue
        scope.nodes.append(node)
        _declare(node, scope)
        if isinstance(node, ast.ClassDef | FunctionNode):
            inner = Scope(path, node, scope)
            scope.inner.setdefault(inner.name, []).append(inner)
            scopes.append(inner)
            work += [(part, inner) for part in reversed(node.body)]
            work += [(part, scope) for part in _outside(node, inner)]
        else:
            work += [(child, scope) for child in reversed(list(ast.iter_child_nodes(node)))]
    return scopes


def _is_dead(node: ast.AST) -> bool:
    """Whether a statement never runs in an imported file: `if __name__ == "__main__"`."""
    match node:
        case ast.If(
            test=ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]), orelse=[]
        ):
            return True
        case _:
            return False


def _outside(node: ast.ClassDef | FunctionNode, inner: Scope) -> list[ast.expr]:
    """Parts of a definition that are evaluated where it stands; binds a function's parameters."""
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *(row.value for row in node.keywords)]
    given = node.args
    _hide(given, inner)
    plain = [*given.posonlyargs, *given.args][::-1]
    pairs = [
        *zip(plain, given.defaults[::-1], strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    for row, value in pairs:
        if value is not None:
            inner.bind(row.arg, value)
    return [*node.decorator_list, *(value for _, value in pairs if value is not None)]


def _hide(arguments: ast.arguments, scope: Scope) -> None:
    """Let parameters hide names of the same spelling in the scopes around."""
    stars = [row for row in (arguments.vararg, arguments.kwarg) if row is not None]
    for row in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *stars):
        scope.names.setdefault(row.arg, [])


def _declare(node: ast.AST, scope: Scope) -> None:
    """Record what a node binds."""
    match node:
        case ast.Import() | ast.ImportFrom():
            _declare_import(node, scope)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            scope.bind(name, f".{name}")
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                _assign(target, value, scope)
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.NamedExpr(target=target, value=value)
        ):
            _assign(target, value, scope)
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            # An element of a display stands for the display, whose elements are joined anyway.
            _assign(target, value, scope)
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            _assign(target, value, scope)
        case ast.Global(names=names):
            scope.declared_global.update(names)
        case ast.Lambda(args=arguments):
            _hide(arguments, scope)
        case _:
            pass


def _declare_import(node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            path = alias.name if alias.asname else alias.name.partition(".")[0]
            scope.bind(alias.asname or path, path)
        return
    for alias in node.names:
        if alias.name == "*":
            scope.stars.append(node.module or "")
        else:
            scope.bind(alias.asname or alias.name, f"{node.module or ''}.{alias.name}".lstrip("."))


def _assign(target: ast.expr, value: ast.expr, scope: Scope) -> None:
    match target:
        case ast.Name(id=name):
            scope.bind(name, value)
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute) if scope.owner is not None:
            scope.owner.bind(f"self.{attribute}", value)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            given = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for place, part in enumerate(parts):
                if isinstance(part, ast.Name | ast.Attribute):
                    _assign(part, given[place] if len(given) == len(parts) else value, scope)
        case _:
            pass
