"""The program's Python files as a whole: what each call resolves to, and when it runs.

Code runs at import, in the constructor, or in forward (the hot path). What none of these was seen to reach
has no phase.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from stitch_tools.judge.source.calls import got
from stitch_tools.judge.source.resolver import Resolver
from stitch_tools.judge.source.scopes import (
    Binding,
    FunctionNode,
    Scope,
    Unit,
    build_unit,
    extend_scope,
    parse_python,
)
from stitch_tools.judge.source.slots import collect_slots
from stitch_tools.judge.source.values import (
    Container,
    Getter,
    Instance,
    Known,
    Local,
    Tensor,
    Value,
    Values,
)
from stitch_tools.judge.source.words import words

Phase = Literal["import", "construct", "forward"]
ENTRY = "ModelNew"
_ROUNDS = 4
_HOOKS = words("register_forward_hook register_forward_pre_hook register_module_forward_hook")
_REGISTERING = words("register_buffer register_parameter add_module register_module")
_CALLED_BY_PYTHON = words("""
    __torch_function__ __torch_dispatch__ __getattr__ __getattribute__ __getitem__ __enter__
""")


@dataclass(frozen=True, eq=False)
class HostCall:
    """One call in a Python file."""

    node: ast.Call
    scope: Scope
    values: Values
    """What is called."""

    @property
    def file(self) -> str:
        """The file it stands in."""
        return self.scope.unit.file

    @property
    def line(self) -> int:
        """The line, from 1."""
        return self.node.lineno

    @property
    def paths(self) -> list[str]:
        """Dotted names of other modules' functions that are called, sorted."""
        return sorted({value.path for value in self.values if isinstance(value, Known)})

    @property
    def method(self) -> str:
        """The attribute's name in `x.name()`, else an empty text."""
        return self.node.func.attr if isinstance(self.node.func, ast.Attribute) else ""


@dataclass(eq=False)
class HostProgram:
    """All Python files of one program."""

    units: tuple[Unit, ...]
    resolver: Resolver
    phases: dict[Scope, set[Phase]] = field(default_factory=dict[Scope, set[Phase]])
    entries: tuple[Scope, ...] = ()
    """Classes that `ModelNew` may be."""
    calls: tuple[HostCall, ...] = ()
    executed: tuple[tuple[ast.Call, Scope], ...] = ()
    """Calls of `exec` whose text was constant and could be followed."""

    def scopes(self) -> Iterator[Scope]:
        """Every scope of every file."""
        for unit in self.units:
            yield from unit.scopes

    def hot(self) -> Iterator[Scope]:
        """Functions that forward reaches."""
        return (scope for scope in self.scopes() if "forward" in self.phases.get(scope, ()))

    def methods(self, classes: Iterable[Scope], names: Iterable[str]) -> list[Scope]:
        """The program's own functions that these attributes of the classes are."""
        found: list[Scope] = []
        for scope in classes:
            for name in names:
                for value in self.resolver.slot(scope, name):
                    if isinstance(value, Local) and value.scope not in found:
                        found.append(value.scope)
        return found

    def run_by(self, value: Value) -> list[Scope]:
        """The program's own functions that calling the value runs for its result."""
        if isinstance(value, Instance):
            return self.methods((value.of.scope,), ("forward", "__call__"))
        return [value.scope] if isinstance(value, Local) and _is_function(value.scope) else []

    def is_reached(self, scope: Scope) -> bool:
        """Whether any of import, constructor and forward was seen to run this."""
        return bool(self.phases.get(scope))


def read_host(trees: Mapping[str, ast.Module], main: str | None) -> HostProgram:
    """The program of these parsed files, by path; `main` holds `ModelNew`."""
    folder = main.rpartition("/")[0] if main else ""
    units = tuple(build_unit(file, _dotted(file, folder), tree) for file, tree in trees.items())
    resolver = Resolver({unit.dotted: unit for unit in units})
    host = HostProgram(units, resolver)
    host.executed = tuple(_follow_exec(host))
    collect_slots(resolver, units)
    for scope in host.scopes():
        _bind_self(host, scope)
    entry_units = [unit for unit in units if unit.file == main] or list(units)
    host.entries = _entries(host, entry_units)
    _reach_all(host)
    host.calls = tuple(
        HostCall(node, scope, _callees(resolver, node, scope))
        for scope in host.scopes()
        for node in scope.nodes
        if isinstance(node, ast.Call)
    )
    return host


def _callees(resolver: Resolver, node: ast.Call, scope: Scope) -> Values:
    """What is called, looked at through `operator.methodcaller`."""
    found = resolver.resolve(node.func, scope)
    for value in found:
        if isinstance(value, Getter) and value.calls:
            found |= got(resolver, node, scope, value)
    return found


def _dotted(file: str, folder: str) -> str:
    """The name that the file is imported by, with the main file's folder on the path."""
    inside = file.removeprefix(f"{folder}/") if folder else file
    return inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _follow_exec(host: HostProgram) -> Iterator[tuple[ast.Call, Scope]]:
    """Add what constant texts given to `exec` and `eval` say to the scopes that run them."""
    done: set[ast.Call] = set()
    for _ in range(3):
        waiting = [
            (node, scope)
            for scope in tuple(host.scopes())
            for node in scope.nodes
            if isinstance(node, ast.Call) and node not in done and node.args
            if {"builtins.exec", "builtins.eval"} & set(host.resolver.paths(node.func, scope))
        ]
        if not waiting:
            return
        for node, scope in waiting:
            done.add(node)
            body = _parsed(host.resolver.text(node.args[0], scope), node.lineno)
            if not body:
                continue
            extend_scope(scope, body, node)
            if isinstance(body[0], ast.Expr):
                host.resolver.evaluated[node] = body[0].value
            yield node, scope
        host.resolver.forget()


def _parsed(text: str | None, line: int) -> list[ast.stmt]:
    try:
        tree = parse_python(text.strip()) if text is not None else ast.Module([], [])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    for part in ast.walk(tree):
        if isinstance(part, ast.expr | ast.stmt):
            part.lineno = part.end_lineno = line
    return tree.body


def _decorators(host: HostProgram, scope: Scope) -> list[str]:
    node = scope.node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or scope.parent is None:
        return []
    return [path for row in node.decorator_list for path in host.resolver.paths(row, scope.parent)]


def _bind_self(host: HostProgram, scope: Scope) -> None:
    owner = scope.owner
    if owner is None or not scope.params or "builtins.staticmethod" in _decorators(host, scope):
        return
    local = Local(owner)
    is_class = "builtins.classmethod" in _decorators(host, scope)
    host.resolver.learn_argument(
        scope, scope.params[0], Binding(value=local if is_class else Instance(local))
    )


def _entries(host: HostProgram, units: Iterable[Unit]) -> tuple[Scope, ...]:
    found: list[Scope] = []
    for unit in units:
        for value in host.resolver.name(ENTRY, unit.module):
            local = value.of if isinstance(value, Instance) else value
            if isinstance(local, Local) and local.scope not in found:
                found.append(local.scope)
    return tuple(found)


def _reach_all(host: HostProgram) -> None:
    for scope in host.entries:
        _learn_inputs(host, scope)
    for _ in range(_ROUNDS):
        reach = _Reach(host)
        reach.run("import", [unit.module for unit in host.units])
        reach.run("construct", host.methods(host.entries, ("__init__", "__new__", "__init_subclass__")))
        hot = host.methods(host.entries, ("forward", "__call__", "_call_impl"))
        reach.run("forward", [*hot, *(scope for scope in host.entries if _is_function(scope)), *reach.hooks])
        if not reach.news:
            return


def _learn_inputs(host: HostProgram, entry: Scope) -> None:
    for method in host.methods((entry,), ("forward", "__call__")):
        # A decorator's inner function and an inherited forward run with the entry as `self`.
        is_bound = method.owner is not None or method.params[:1] == ["self"]
        for name in method.params[1 if is_bound else 0 :]:
            host.resolver.learn_argument(method, name, Binding(value=Tensor("input")))
        if is_bound and method.owner is not entry and method.params:
            host.resolver.learn_argument(method, method.params[0], Binding(value=Instance(Local(entry))))


def _is_function(scope: Scope) -> bool:
    return isinstance(scope.node, FunctionNode)


class _Reach:
    """One pass over the call graph."""

    def __init__(self, host: HostProgram) -> None:
        self.host = host
        self.news = False
        self.hooks: list[Scope] = []

    def run(self, phase: Phase, roots: Iterable[Scope]) -> None:
        work, seen = list(roots), set[Scope]()
        while work:
            scope = work.pop()
            if scope in seen:
                continue
            seen.add(scope)
            self.host.phases.setdefault(scope, set()).add(phase)
            for node in scope.nodes:
                work.extend(self._reached_by(node, scope))

    def _reached_by(self, node: ast.AST, scope: Scope) -> Iterator[Scope]:
        match node:
            case ast.Call():
                yield from self._called(node, scope)
            case ast.ClassDef():
                yield scope.unit.scope_of[node]
            case ast.FunctionDef(decorator_list=[_, *_]) | ast.AsyncFunctionDef(decorator_list=[_, *_]):
                for row in node.decorator_list:
                    for target in self._functions(self.host.resolver.resolve(row, scope)):
                        given = Binding(value=Local(scope.unit.scope_of[node]))
                        if target.params:
                            self.news |= self.host.resolver.learn_argument(target, target.params[0], given)
                        yield target
            case ast.Attribute(ctx=ast.Load()):
                for value in self.host.resolver.resolve(node, scope):
                    if isinstance(value, Local) and "builtins.property" in _decorators(
                        self.host, value.scope
                    ):
                        yield value.scope
            case _:
                pass

    def _called(self, node: ast.Call, scope: Scope) -> Iterator[Scope]:
        resolver = self.host.resolver
        is_hook = isinstance(node.func, ast.Attribute) and node.func.attr in _HOOKS
        for value in resolver.resolve(node.func, scope):
            for target, offset in self._targets(value, node):
                self._learn(node, scope, target, offset)
                yield target
        for argument in (*node.args, *(row.value for row in node.keywords)):
            if isinstance(argument, ast.Name | ast.Attribute | ast.Lambda | ast.Call):
                given = list(self._functions(resolver.resolve(argument, scope)))
                yield from given
                self.hooks.extend(given if is_hook else ())

    def _functions(self, values: Values) -> Iterator[Scope]:
        for value in values:
            if isinstance(value, Local) and _is_function(value.scope):
                yield value.scope

    def _targets(self, value: Value, node: ast.Call) -> Iterator[tuple[Scope, int]]:
        """Functions that calling `value` runs, each with the number of parameters bound already."""
        match value:
            case Local(scope=inner) if _is_function(inner):
                bound = inner.owner is not None and isinstance(node.func, ast.Attribute)
                if bound and "builtins.staticmethod" in _decorators(self.host, inner):
                    bound = False
                yield inner, 1 if bound else 0
            case Local(scope=inner):
                for method in self.host.methods((inner,), ("__init__", "__new__", *_CALLED_BY_PYTHON)):
                    yield method, 1
            case Instance(of=local):
                for method in self.host.methods((local.scope,), ("forward", "__call__")):
                    yield method, 1
            case Known(path=path) if path.endswith(".apply") and isinstance(node.func, ast.Attribute):
                yield from self._applied(node.func.value, node)
            case _:
                pass

    def _applied(self, function: ast.expr, node: ast.Call) -> Iterator[tuple[Scope, int]]:
        """`forward` of a torch.autograd.Function whose `apply` is called."""
        for scope in self.host.scopes():
            if scope.unit.parents.get(node) is None or node not in scope.nodes:
                continue
            for value in self.host.resolver.resolve(function, scope):
                if isinstance(value, Local):
                    for method in self.host.methods((value.scope,), ("forward",)):
                        yield method, 1

    def _learn(self, node: ast.Call, scope: Scope, target: Scope, offset: int) -> None:
        params, resolver = target.params, self.host.resolver
        for place, argument in enumerate(node.args):
            if isinstance(argument, ast.Starred):
                for name in params[place + offset :]:
                    self.news |= resolver.learn_argument(
                        target, name, Binding(argument.value, scope, "element")
                    )
                break
            if place + offset < len(params):
                name = params[place + offset]
                self.news |= resolver.learn_argument(target, name, Binding(argument, scope))
        for row in node.keywords:
            if row.arg in params:
                self.news |= resolver.learn_argument(target, row.arg, Binding(row.value, scope))


def contains_tensor(host: HostProgram, values: Values, depth: int = 0) -> bool:
    """Whether one of the values is, or holds, a computed tensor."""
    for value in values:
        if isinstance(value, Tensor) and value.origin == "result":
            return True
        if isinstance(value, Container) and depth < 4:
            parts = value.node.values if isinstance(value.node, ast.Dict) else value.node.elts
            for part in parts[:32]:
                if contains_tensor(host, host.resolver.resolve(part, value.scope), depth + 1):
                    return True
    return False
