"""A program's Python side: its files, its calls, and which functions run in forward.

A function is taken to run where its name is mentioned by code that runs. This over-estimates: a finding may
be graver than it is, but none is lost.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from stitch_tools.judge.source.python_names import Names, Paths
from stitch_tools.judge.source.python_scopes import Scope, read_scopes

ENTRY = "ModelNew"
_ENTRIES: tuple[str, ...] = (ENTRY, "custom_kernel")
_FORWARD = ("forward", "__call__")
NodeT = TypeVar("NodeT", bound=ast.AST)


@dataclass(frozen=True, eq=False)
class PythonCall:
    """One call."""

    node: ast.Call
    scope: Scope
    paths: Paths
    """What is called, as far as it is known."""

    @property
    def method(self) -> str:
        """The attribute that is called: `matmul` of `x.matmul(y)`; empty for a plain name."""
        return self.node.func.attr if isinstance(self.node.func, ast.Attribute) else ""


@dataclass(eq=False)
class PythonFiles:
    """All Python files of a program."""

    modules: list[Scope]
    scopes: list[Scope]
    """All of them, those of the modules included."""
    names: Names
    calls: list[PythonCall] = field(default_factory=list[PythonCall])
    reached: set[Scope] = field(default_factory=set[Scope])
    """What import, constructor or forward may run."""
    hot: set[Scope] = field(default_factory=set[Scope])
    """What forward may run."""
    by_kind: dict[type[ast.AST], list[tuple[ast.AST, Scope]]] = field(
        default_factory=dict[type[ast.AST], list[tuple[ast.AST, Scope]]]
    )

    def of(self, kind: type[NodeT]) -> Iterator[tuple[NodeT, Scope]]:
        """Every node of this very kind, with its scope."""
        for node, scope in self.by_kind.get(kind, ()):
            if isinstance(node, kind):  # for the type checker
                yield node, scope


def read_python(trees: Mapping[str, ast.Module], main: str | None) -> PythonFiles:
    """The program of these files; `main` is the one that is imported first, if that is known."""
    scopes = [scope for path in sorted(trees) for scope in read_scopes(path, trees[path])]
    modules = [scope for scope in scopes if scope.parent is None]
    program = PythonFiles(modules, scopes, Names(modules))
    for scope in scopes:
        for node in scope.nodes:
            program.by_kind.setdefault(type(node), []).append((node, scope))
    for node, scope in program.of(ast.Call):
        program.calls.append(PythonCall(node, scope, program.names.paths(node.func, scope)))
    entries = {name for module in modules if main in (None, module.file) for name in _entry_names(module)}
    # `ModelNew`, and the program's own classes that it is bound to.
    tops = [scope for scope in scopes if scope.name in entries and scope.parent is scope.module]
    program.reached = _closure(program, [*modules, *tops])
    # An object that the constructor makes is called by its class's forward later.
    roots = [scope for scope in program.reached if scope.name in _FORWARD]
    functions = [scope for scope in tops if not isinstance(scope.node, ast.ClassDef)]
    program.hot = _closure(program, [*roots, *functions])
    return program


def _entry_names(module: Scope) -> set[str]:
    """`ModelNew` or `custom_kernel`, and the names in what it is bound to: `ModelNew = wrap(Inner)`."""
    names = set(_ENTRIES)
    for binding in (row for entry in _ENTRIES for row in module.names.get(entry, ())):
        if isinstance(binding, ast.expr):
            names.update(node.id for node in ast.walk(binding) if isinstance(node, ast.Name))
        else:
            names.add(binding.rpartition(".")[2])
    return names


def _closure(program: PythonFiles, roots: Iterable[Scope]) -> set[Scope]:
    """The roots, and all functions and classes that they mention."""
    functions: dict[str, list[Scope]] = {}
    methods: dict[str, list[Scope]] = {}
    for scope in program.scopes:
        is_method = scope.parent is not None and isinstance(scope.parent.node, ast.ClassDef)
        (methods if is_method else functions).setdefault(scope.name, []).append(scope)
    found: set[Scope] = set()
    waiting = list(roots)
    while waiting:
        scope = waiting.pop()
        if scope in found:
            continue
        found.add(scope)
        for node in _loads(scope):
            # Each name is taken out: what it means was added when it was met first.
            if isinstance(node, ast.Name):
                # An import may give a function another name.
                paths = program.names.paths(node, scope)
                names = {node.id, *(path.removeprefix(".") for path in paths if path.startswith("."))}
                waiting += [target for name in names for target in functions.pop(name, ())]
            else:
                # `super().__init__()` names no class; special methods come with theirs.
                waiting += methods.pop(node.attr, []) if not node.attr.startswith("__") else []
                owned = [path for path in program.names.paths(node, scope) if path.startswith(".")]
                waiting += [target for path in owned for target in functions.pop(path[1:], ())]
        if isinstance(scope.node, ast.ClassDef):
            special = [name for name in scope.inner if name == "forward" or name.startswith("__")]
            waiting += [method for name in special for method in scope.inner[name]]
    return found


def _loads(scope: Scope) -> Iterator[ast.Name | ast.Attribute]:
    """Names and attributes in the scope's own code and, of a function or class, in its decorators."""
    rows = [] if isinstance(scope.node, ast.Module) else scope.node.decorator_list
    for node in (*scope.nodes, *(part for row in rows for part in ast.walk(row))):
        if isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
            yield node
