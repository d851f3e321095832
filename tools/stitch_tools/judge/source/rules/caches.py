"""Results that forward stores in one call and returns in another."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.host import contains_tensor
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.scopes import Scope
from stitch_tools.judge.source.values import Instance, Key, KeyKind, Local
from stitch_tools.judge.source.words import words
from stitch_tools.models import Severity

_PASSED = words("clone detach contiguous view reshape to copy get pop setdefault view_as squeeze type")
_MEMO = ("functools.lru_cache", "functools.cache", "functools.cached_property")
_DEPTH = 6


@dataclass(frozen=True)
class _Place:
    """Something that outlives a call: an attribute of an object, or a global name."""

    owner: int
    name: str


@dataclass(frozen=True)
class _Store:
    place: _Place
    node: ast.AST
    scope: Scope
    in_capture: bool
    """Whether it happens while a CUDA graph is captured."""


@dataclass(frozen=True)
class Cached:
    """One return of a stored result."""

    scope: Scope
    node: ast.Return
    kinds: frozenset[KeyKind]
    is_graph: bool


@lru_cache(maxsize=1)
def cached_results(scanned: Scanned) -> tuple[Cached, ...]:
    """Returns in forward of results that an earlier call may have stored. Five rules share one search."""
    return tuple(_search(scanned))


def _search(scanned: Scanned) -> Iterator[Cached]:
    finder = _Finder(scanned)
    stores = [store for scope in scanned.host.hot() for store in finder.stores(scope)]
    by_place: dict[_Place, list[_Store]] = {}
    for store in stores:
        by_place.setdefault(store.place, []).append(store)
    for scope in finder.result_scopes():
        replays = _calls_method(scope, "replay")
        for node in scope.nodes:
            if not isinstance(node, ast.Return) or node.value is None:
                continue
            for place in finder.places(node.value, scope):
                rows = by_place.get(place, [])
                if rows and not any(_dominates(scope, row.node, node) for row in rows if row.scope is scope):
                    kinds = finder.kinds_around(node, scope) | _kinds_of_keys(finder, rows)
                    is_graph = replays or all(row.in_capture for row in rows)
                    yield Cached(scope, node, kinds, is_graph)
                    break


def _kinds_of_keys(finder: "_Finder", rows: list[_Store]) -> frozenset[KeyKind]:
    return frozenset(kind for row in rows for kind in finder.kinds_around(row.node, row.scope))


class _Finder:
    """Places and keys of one program."""

    def __init__(self, scanned: Scanned) -> None:
        self.host = scanned.host
        self.resolver = scanned.host.resolver
        self._known: dict[tuple[ast.expr, Scope], frozenset[_Place]] = {}
        self.counters = {
            place
            for scope in scanned.host.hot()
            for node in scope.nodes
            if isinstance(node, ast.AugAssign)
            for place in self.places(node.target, scope)
        }

    def result_scopes(self) -> list[Scope]:
        """Functions whose returned values forward returns, forward first."""
        found = self.host.methods(self.host.entries, ("forward", "__call__"))
        found += [scope for scope in self.host.entries if not isinstance(scope.node, ast.ClassDef)]
        for scope in found:
            returned: list[ast.AST] = [node for node in scope.nodes if isinstance(node, ast.Return)]
            if isinstance(scope.node, ast.Lambda):
                returned.append(scope.node.body)
            found += [row for row in self._given_back(returned, scope) if row not in found]
        return found

    def _given_back(self, returned: list[ast.AST], scope: Scope) -> Iterator[Scope]:
        """Functions whose results the expressions are made of, local names followed."""
        waiting, seen = list(returned), set[ast.AST]()
        while waiting:
            current = waiting.pop()
            if current in seen:
                continue
            seen.add(current)
            waiting.extend(ast.iter_child_nodes(current))
            if isinstance(current, ast.Call):
                for value in self.resolver.resolve(current.func, scope):
                    yield from self.host.run_by(value)
            elif isinstance(current, ast.Name):
                rows = scope.names.get(current.id, [])
                waiting.extend(row.expr for row in rows if row.expr is not None and row.scope is scope)

    def stores(self, scope: Scope) -> Iterator[_Store]:
        """Computed tensors that the function puts somewhere lasting."""
        for node in scope.nodes:
            for target, value in _assignments(node):
                places = (
                    self.places(target, scope)
                    if not isinstance(target, ast.Name)
                    else self._global(target, scope)
                )
                if places and contains_tensor(self.host, self.resolver.resolve(value, scope)):
                    captured = _in_capture(self.resolver.paths, scope, node)
                    for place in places:
                        yield _Store(place, node, scope, captured)

    def places(self, expr: ast.expr, scope: Scope, depth: int = 0) -> frozenset[_Place]:
        """Lasting places that the expression reads from, or writes to."""
        key = (expr, scope)
        if key not in self._known:
            self._known[key] = frozenset()
            self._known[key] = self._places(expr, scope, depth) if depth <= _DEPTH else frozenset()
        return self._known[key]

    def _places(self, expr: ast.expr, scope: Scope, depth: int) -> frozenset[_Place]:
        match expr:
            case ast.Attribute(value=base, attr=name):
                owners = self.resolver.resolve(base, scope)
                found = {_Place(id(_scope_of(v)), name) for v in owners if isinstance(v, Instance | Local)}
                return frozenset(found) or self.places(base, scope, depth + 1)
            case ast.Subscript(value=base) | ast.Starred(value=base) | ast.NamedExpr(value=base):
                return self.places(base, scope, depth + 1)
            case ast.Call(func=ast.Attribute(value=base, attr=name)) if name in _PASSED:
                return self.places(base, scope, depth + 1)
            case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
                return self.places(left, scope, depth + 1) | self.places(right, scope, depth + 1)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return frozenset(place for part in parts for place in self.places(part, scope, depth + 1))
            case ast.Name():
                return self._named(expr, scope, depth)
            case _:
                return frozenset()

    def _global(self, expr: ast.Name, scope: Scope) -> frozenset[_Place]:
        """A bare name, where assigning it changes the module's or an outer function's."""
        lasts = expr.id in scope.outer or expr.id in scope.enclosing
        return frozenset([_Place(0, expr.id)]) if lasts else frozenset()

    def _named(self, expr: ast.Name, scope: Scope, depth: int) -> frozenset[_Place]:
        if self._global(expr, scope):
            return frozenset([_Place(0, expr.id)])
        rows = [row for row in scope.names.get(expr.id, ()) if row.how == "value"]
        if not rows and expr.id not in scope.params:
            return frozenset([_Place(0, expr.id)])
        if expr.id in scope.params:
            # A mutable default outlives the call.
            return frozenset([_Place(id(scope), expr.id)]) if _has_default(scope, expr.id) else frozenset()
        found: set[_Place] = set()
        for row in rows[:8]:
            if row.expr is not None and row.scope is not None:
                found |= self.places(row.expr, row.scope, depth + 1)
        return frozenset(found)

    def kinds_around(self, node: ast.AST, scope: Scope) -> frozenset[KeyKind]:
        """What the conditions and keys around the node are made of."""
        found: set[KeyKind] = set()
        parts: list[ast.AST] = [node]
        for outer in scope.unit.ancestors(node):
            if outer is scope.node:
                break
            if isinstance(outer, ast.If | ast.IfExp | ast.While):
                parts.append(outer.test)
        for part in parts:
            for inner in ast.walk(part):
                if isinstance(inner, ast.expr):
                    found |= self._kinds(inner, scope)
        return frozenset(found)

    def _kinds(self, expr: ast.expr, scope: Scope) -> set[KeyKind]:
        found: set[KeyKind] = set()
        if isinstance(expr, ast.Compare) and any(isinstance(row, ast.Is | ast.IsNot) for row in expr.ops):
            others = (expr.left, *expr.comparators)
            if not any(isinstance(part, ast.Constant) for part in others):
                found.add("pointer")
        if isinstance(expr, ast.Attribute | ast.Name | ast.Call):
            for value in self.resolver.resolve(expr, scope):
                if isinstance(value, Key):
                    found.add(value.kind)
        if isinstance(expr, ast.Attribute | ast.Name) and self.places(expr, scope) & self.counters:
            found.add("count")
        return found


def _scope_of(value: Instance | Local) -> Scope:
    return value.of.scope if isinstance(value, Instance) else value.scope


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(target.elts, value.elts, strict=False)
                else:
                    yield target, value
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.NamedExpr(target=target, value=value)
        ):
            yield target, value
        case ast.Call(
            func=ast.Attribute(value=base, attr="append" | "setdefault" | "update"), args=[*_, value]
        ):
            yield ast.Subscript(base, value, ast.Store()), value
        case ast.Call(func=ast.Name(id="setattr"), args=[base, ast.Constant(value=str() as name), value]):
            yield ast.Attribute(base, name, ast.Store()), value
        case _:
            pass


def _has_default(scope: Scope, name: str) -> bool:
    if not isinstance(scope.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    given = scope.node.args
    rows = [*given.posonlyargs, *given.args]
    with_default = rows[len(rows) - len(given.defaults) :]
    keyword = [
        row for row, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value is not None
    ]
    return any(row.arg == name for row in (*with_default, *keyword))


def _in_capture(paths: Callable[[ast.expr, Scope], list[str]], scope: Scope, node: ast.AST) -> bool:
    for outer in scope.unit.ancestors(node):
        if isinstance(outer, ast.With):
            for item in outer.items:
                called = item.context_expr
                if isinstance(called, ast.Call) and ast.unparse(called.func).endswith(
                    ("cuda.graph", "capture")
                ):
                    return True
    return False


def _calls_method(scope: Scope, name: str) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
        for node in scope.nodes
    )


def _dominates(scope: Scope, first: ast.AST, second: ast.AST) -> bool:
    """Whether `first` has always run when `second` runs, as far as nesting shows."""
    if getattr(first, "lineno", 0) > getattr(second, "lineno", 0):
        return False
    statement = first
    while not isinstance(statement, ast.stmt):
        statement = scope.unit.parents[statement]
    block = scope.unit.parents.get(statement)
    while isinstance(block, ast.With):
        block = scope.unit.parents.get(block)
    if block is scope.node:
        return True
    around = set(scope.unit.ancestors(second))
    if block not in around or isinstance(block, ast.Try | ast.For | ast.While):
        return False
    return _same_branch(block, statement, second, scope)


def _same_branch(block: ast.AST | None, first: ast.AST, second: ast.AST, scope: Scope) -> bool:
    path = {second, *scope.unit.ancestors(second)}
    for name in ("body", "orelse", "finalbody"):
        rows: list[ast.AST] = list(getattr(block, name, ()))
        if first in rows:
            return any(row in path for row in rows)
    return isinstance(block, ast.ExceptHandler)


_WORDS: dict[KeyKind, str] = {
    "pointer": "the input's address or identity",
    "shape": "the input's shape",
    "value": "the input's values",
    "count": "the number of calls",
}


def _find(scanned: Scanned, kind: KeyKind | None) -> Iterator[Hit]:
    order: tuple[KeyKind, ...] = ("pointer", "value", "count", "shape")
    for cached in cached_results(scanned):
        chosen: KeyKind | None = next((name for name in order if name in cached.kinds), None)
        if chosen != kind:
            continue
        what = f"chosen by {_WORDS[chosen]}" if chosen else "of an earlier call"
        severity: Severity = "note" if cached.is_graph else "suspicious"
        message = f"forward may return a stored result {what}"
        if cached.is_graph:
            message += "; a graph is replayed into it"
        yield Hit(cached.scope.unit.file, cached.node.lineno, message, severity)


def find_by_pointer(scanned: Scanned) -> Iterator[Hit]:
    """Stored results by address or identity."""
    return _find(scanned, "pointer")


def find_by_shape(scanned: Scanned) -> Iterator[Hit]:
    """Stored results by shape."""
    return _find(scanned, "shape")


def find_by_value(scanned: Scanned) -> Iterator[Hit]:
    """Stored results by hash, sum or comparison."""
    return _find(scanned, "value")


def find_by_count(scanned: Scanned) -> Iterator[Hit]:
    """Stored results by number of calls."""
    return _find(scanned, "count")


def find_unkeyed(scanned: Scanned) -> Iterator[Hit]:
    """Stored results without a key."""
    return _find(scanned, None)


def find_memoised(scanned: Scanned) -> Iterator[Hit]:
    """Functions on the hot path that functools remembers the tensors of."""
    for scope in scanned.host.scopes():
        if not isinstance(scope.node, ast.FunctionDef) or scope.parent is None:
            continue
        rows = [row.func if isinstance(row, ast.Call) else row for row in scope.node.decorator_list]
        paths = {path for row in rows for path in scanned.host.resolver.paths(row, scope.parent)}
        is_hot = "forward" in scanned.host.phases.get(scope, ())
        if (
            is_hot
            and paths & set(_MEMO)
            and contains_tensor(scanned.host, scanned.host.resolver.returned(scope))
        ):
            yield Hit(scope.unit.file, scope.node.lineno, f"the results of {scope.name} are remembered")


_ADVICE = "Compute every output in every call; whether a result is stale is tried with changed inputs."


RULES = (
    Rule(
        "result_cached_by_pointer",
        "suspicious",
        "Forward returns a tensor that an earlier call computed, chosen by the address or identity of the "
        "input. "
        "A graph or descriptor that is kept by address is a note.",
        _ADVICE,
        find_by_pointer,
    ),
    Rule(
        "result_cached_by_shape",
        "suspicious",
        "Forward returns a tensor that an earlier call computed, chosen by the shape of the input.",
        _ADVICE,
        find_by_shape,
    ),
    Rule(
        "result_cached_by_value",
        "suspicious",
        "Forward returns a tensor that an earlier call computed, chosen by a hash, sum or comparison of "
        "the input.",
        _ADVICE,
        find_by_value,
    ),
    Rule(
        "result_cached_by_count",
        "suspicious",
        "Forward returns a tensor that an earlier call computed, from a certain call on.",
        _ADVICE,
        find_by_count,
    ),
    Rule(
        "result_cached",
        "suspicious",
        "Forward returns a tensor that an earlier call computed, whatever the input.",
        _ADVICE,
        find_unkeyed,
    ),
    Rule(
        "result_memoised",
        "suspicious",
        "functools.lru_cache or cache remembers tensors that a function on the hot path computed.",
        _ADVICE,
        find_memoised,
    ),
)
