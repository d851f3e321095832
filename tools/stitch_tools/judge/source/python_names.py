"""What a name in a Python file stands for, followed through imports and plain assignments only.

A dotted path is the answer: `torch.nn.functional.relu`. `()` in a path is what a call gave
(`torch.nn.Linear()`), a leading dot is the program's own (`.Block`). Functions are not followed into, and
a display may be any of its elements.
"""

import ast
import builtins
from collections.abc import Iterable

from stitch_tools.judge.source.python_scopes import Binding, Scope

MAX_STEPS = 300_000
"""Expressions looked at in one program. A count, not a time, so that equal programs give equal findings."""
MAX_CHARS = 1 << 20
_MAX_DEPTH = 40
_MAX_PATHS = 12
_MAX_PATH_CHARS = 300
_MAX_PARTS = 4096

IMPORTERS = ("builtins.__import__", "importlib.import_module", "importlib.__import__")
_WRAPPERS = ("functools.partial", "torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")
"""Calls that give their arguments back."""

Paths = tuple[str, ...]


class Names:
    """Resolves expressions of one program's Python files."""

    def __init__(self, modules: Iterable[Scope]) -> None:
        self.steps = 0
        self._modules: dict[str, Scope] = {}
        self._paths: dict[ast.expr, Paths] = {}
        self._texts: dict[ast.expr, str | None] = {}
        for module in modules:
            dotted = module.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            self._modules[dotted] = self._modules[dotted.rpartition(".")[2]] = module

    def paths(self, expr: ast.expr | None, scope: Scope, depth: int = 0) -> Paths:
        """All dotted names that the expression may stand for; () where nothing is known of it."""
        if expr is None or depth > _MAX_DEPTH or self.steps > MAX_STEPS:
            return ()
        if expr not in self._paths:
            self.steps += 1
            self._paths[expr] = ()  # ends a cycle
            found = dict.fromkeys(self._find(expr, scope, depth + 1))
            self._paths[expr] = tuple(path for path in found if len(path) < _MAX_PATH_CHARS)[:_MAX_PATHS]
        return self._paths[expr]

    def _find(self, expr: ast.expr, scope: Scope, depth: int) -> Iterable[str]:
        bound = self._bindings(expr, scope)
        if bound is not None:
            return self._bound(*bound, depth)
        match expr:
            case ast.Name(id=name) if hasattr(builtins, name):
                return (f"builtins.{name}",)
            case ast.Name(id=name):
                return [f"{star}.{name}" for star in scope.module.stars]
            case ast.Attribute(value=base, attr=name):
                return self._member(self.paths(base, scope, depth), name, depth)
            case ast.Call():
                return self._call(expr, scope, depth)
            case ast.Subscript(value=value) | ast.NamedExpr(value=value) | ast.Starred(value=value):
                return self.paths(value, scope, depth)  # an element of a display stands for the display
            case (
                ast.Tuple(elts=parts)
                | ast.List(elts=parts)
                | ast.Dict(values=parts)
                | ast.BoolOp(values=parts)
            ):
                return self._joined(parts, scope, depth)
            case ast.IfExp(body=first, orelse=second):
                return self._joined((first, second), scope, depth)
            case _:
                return ()

    @staticmethod
    def _bindings(expr: ast.expr, scope: Scope) -> tuple[list[Binding], Scope] | None:
        """What a name or `self.x` is bound to, and a scope to read that in; None where nobody binds it."""
        match expr:
            case ast.Name(id=name):
                holder = holder_of(name, scope)
                return None if holder is None else (holder.names[name], holder)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if scope.owner is not None:
                owner = scope.owner
                # The constructor is where most values of `self.x` are written.
                inside = owner.inner.get("__init__", [owner])[-1]
                return [*owner.names.get(f"self.{name}", ()), *owner.names.get(name, ())], inside
            case _:
                return None

    def _joined(self, parts: Iterable[ast.expr], scope: Scope, depth: int) -> list[str]:
        return [path for part in tuple(parts)[:_MAX_PATHS] for path in self.paths(part, scope, depth)]

    def _bound(self, bindings: list[Binding], scope: Scope, depth: int) -> list[str]:
        found: list[str] = []
        for binding in bindings[:_MAX_PATHS]:
            if not isinstance(binding, str):
                found += self.paths(binding, scope, depth)
            elif binding.rpartition(".")[0] in self._modules:
                module, _, name = binding.rpartition(".")
                found += self._member((module,), name, depth)
            else:
                found.append(binding)
        return found

    def _member(self, owners: Iterable[str], name: str, depth: int) -> list[str]:
        found: list[str] = []
        for owner in owners:
            module = self._modules.get(owner)
            if module is not None and name in module.names and depth < _MAX_DEPTH:
                found += self._bound(module.names[name], module, depth + 1)
            else:
                found.append(f"{owner}.{name}")
        return found

    def _call(self, node: ast.Call, scope: Scope, depth: int) -> list[str]:
        found: list[str] = []
        first = node.args[0] if node.args else None
        for path in self.paths(node.func, scope, depth):
            if path == "builtins.getattr" and len(node.args) > 1:
                name = self.text(node.args[1], scope, depth)
                owners = self.paths(first, scope, depth)
                found += [f"{path}()"] if name is None else self._member(owners, name, depth)
            elif path in IMPORTERS:
                name = self.text(first, scope, depth)
                # __import__("a.b") gives a, unless names are asked for.
                is_top = path == "builtins.__import__" and len(node.args) < 4
                found.append(f"{path}()" if name is None else name.partition(".")[0] if is_top else name)
            elif path in _WRAPPERS:
                found += self._joined(node.args, scope, depth)
            else:
                found.append(f"{path}()")
        return found

    def text(self, expr: ast.expr | None, scope: Scope, depth: int = 0) -> str | None:
        """The constant text that the expression is: literals, `+`, f-strings and names of such."""
        if expr is None or depth > _MAX_DEPTH or self.steps > MAX_STEPS:
            return None
        if expr not in self._texts:
            self.steps += 1
            self._texts[expr] = None  # ends a cycle
            parts = [self._text(part, scope, depth + 1) for part in summands(expr)]
            known = [part for part in parts if part is not None]
            fits = len(known) == len(parts) and sum(map(len, known)) <= MAX_CHARS
            self._texts[expr] = "".join(known) if fits else None
        return self._texts[expr]

    def _text(self, expr: ast.expr, scope: Scope, depth: int) -> str | None:
        match expr:
            case ast.Constant(value=str() as text):
                return text
            case ast.Constant(value=bytes() as data):
                return data.decode("utf-8", "replace")
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self.text(value, scope, depth)
            case ast.Name() | ast.Attribute():
                bound = self.bound_to(expr, scope)
                return self.text(bound[0], bound[1], depth) if bound is not None else None
            case _:
                return None

    def bound_to(self, expr: ast.expr, scope: Scope) -> tuple[ast.expr, Scope] | None:
        """The one expression that a name or `self.x` is bound to, with its scope; None for anything else."""
        bindings, holder = self._bindings(expr, scope) or ([], None)
        if len(bindings) == 1 and isinstance(bindings[0], str):  # perhaps from another file of the program
            module, _, name = bindings[0].rpartition(".")
            holder = self._modules.get(module)
            bindings = holder.names.get(name, []) if holder is not None else []
        only = bindings[0] if len(bindings) == 1 else None
        return (only, holder) if holder is not None and isinstance(only, ast.expr) else None


def holder_of(name: str, scope: Scope) -> Scope | None:
    """The scope that binds the name where `scope` uses it; None for a builtin or an unknown name."""
    current: Scope | None = scope
    while current is not None:
        # A class body's names are not seen from its methods.
        is_visible = current is scope or not isinstance(current.node, ast.ClassDef)
        if is_visible and name in current.names:
            return current
        current = current.parent
    return None


def summands(expr: ast.expr) -> list[ast.expr]:
    """The parts of a sum or an f-string, in order, found without recursion; one for any other expression."""
    parts: list[ast.expr] = []
    waiting = [expr]
    while waiting and len(parts) < _MAX_PARTS:
        current = waiting.pop()
        if isinstance(current, ast.BinOp) and isinstance(current.op, ast.Add):
            waiting += [current.right, current.left]
        elif isinstance(current, ast.JoinedStr):
            waiting += reversed(current.values)
        else:
            parts.append(current)
    # What is left of a longer sum is no constant, so neither is the whole.
    return [*parts, *waiting]
